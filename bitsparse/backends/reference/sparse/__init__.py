"""Builders of the sparse formats, defined."""
