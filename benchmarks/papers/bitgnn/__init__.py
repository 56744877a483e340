"""The tables and figures of BitGNN (ICS'23)."""
