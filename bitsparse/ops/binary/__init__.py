"""Products and aggregation of signs (BitGNN)."""
