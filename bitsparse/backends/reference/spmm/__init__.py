"""Reference definition of sparse times dense."""
