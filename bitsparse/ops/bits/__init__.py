"""Quantising and packing, and how much they lose."""
