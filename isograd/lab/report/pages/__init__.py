"""A file per command whose result becomes a page."""
