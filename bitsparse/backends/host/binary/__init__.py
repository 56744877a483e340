"""Aggregation of signs on the host."""
