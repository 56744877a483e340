"""Sparse times dense."""
