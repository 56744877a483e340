"""Sums over sampled edges on the host."""
