"""Networks in full precision."""
