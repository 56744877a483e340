"""The tables and figures of QGTC (PPoPP'22)."""
