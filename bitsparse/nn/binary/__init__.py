"""Binary networks (BitGNN)."""
