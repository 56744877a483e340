"""The tables and figures of AES-SpMM (Song et al., 2025)."""
