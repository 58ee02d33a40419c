"""What a run will need: memory, sizes, time."""
