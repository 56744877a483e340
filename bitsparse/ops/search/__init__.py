"""Exact searches among rows of bits: nearest neighbours, and all pairs of similar rows."""
