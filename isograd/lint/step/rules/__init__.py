"""Groups of rules: each looks at what preflight has seen of a run, and yields findings and sentences."""
