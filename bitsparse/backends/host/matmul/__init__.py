"""Products of packed integers on the host."""
