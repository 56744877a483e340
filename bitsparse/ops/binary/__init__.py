"""Products and aggregation of -1/+1 signs (BitGNN)."""
