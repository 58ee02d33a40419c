"""Several runs that belong together."""
