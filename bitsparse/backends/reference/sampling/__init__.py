"""Reference definition of sums over sampled edges."""
