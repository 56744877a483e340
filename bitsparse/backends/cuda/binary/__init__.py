"""Products and aggregation of signs on the GPU."""
