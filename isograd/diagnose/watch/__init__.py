"""Watching and probing a model during a run."""
