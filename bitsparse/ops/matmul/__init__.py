"""Products of packed integers."""
