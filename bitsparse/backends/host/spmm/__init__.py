"""Sparse times dense on the host."""
