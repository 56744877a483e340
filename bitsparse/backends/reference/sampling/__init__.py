"""Sums over sampled edges, defined."""
