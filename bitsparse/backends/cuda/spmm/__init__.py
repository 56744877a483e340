"""Sparse times dense on the GPU."""
