"""Networks over sampled edges (AES-SpMM)."""
