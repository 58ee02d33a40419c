"""Models from elsewhere."""
