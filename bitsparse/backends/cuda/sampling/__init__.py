"""Sums over sampled edges on the GPU."""
