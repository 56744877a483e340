"""Products of sparse matrices with dense features."""
