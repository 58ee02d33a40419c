"""Rules about what reaches what: other sequences, the future, the padding, the source."""
