"""Products of real matrices in integers."""
