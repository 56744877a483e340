"""The tables and figures of TANGO (SC'23)."""
