"""Sampling of edges, and sums over the sampled edges."""
