"""Aggregation of signs, defined."""
