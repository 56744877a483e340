"""Packing and quantising, defined."""
