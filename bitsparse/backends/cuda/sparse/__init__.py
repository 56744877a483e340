"""Builders of the sparse formats on the GPU."""
