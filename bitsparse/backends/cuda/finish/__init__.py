"""Epilogues and other last steps of products on the GPU, before results are stored."""
