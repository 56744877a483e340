"""Searches among rows of bits, slow and plain."""
