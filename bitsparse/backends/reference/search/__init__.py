"""Slow, plain searches among rows of bits."""
