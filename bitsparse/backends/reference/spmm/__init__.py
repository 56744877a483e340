"""Sparse times dense, defined."""
