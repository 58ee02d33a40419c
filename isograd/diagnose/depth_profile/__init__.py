"""The depth profile of a model at one batch."""
