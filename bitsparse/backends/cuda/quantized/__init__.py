"""Products of real matrices in integers on the GPU."""
