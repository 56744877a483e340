"""Quantisation and packing, and the error of quantisation."""
