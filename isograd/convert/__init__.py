"""Models of other libraries in, isograd's models out: both directions side by side, measured by one parity report."""
