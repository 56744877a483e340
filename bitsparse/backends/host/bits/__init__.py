"""Packing and quantising on the host."""
