"""Products of packed integers, defined."""
