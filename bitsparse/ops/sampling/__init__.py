"""Sums over sampled edges."""
