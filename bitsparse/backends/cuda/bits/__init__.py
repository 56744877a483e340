"""Packing and quantising on the GPU."""
