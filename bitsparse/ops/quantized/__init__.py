"""Products of real matrices, computed in integers."""
