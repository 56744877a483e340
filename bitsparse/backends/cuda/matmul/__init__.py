"""Products of packed integers on the GPU."""
