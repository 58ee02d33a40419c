"""Verbs that train: grids, comparisons, replays, the papers' items."""
