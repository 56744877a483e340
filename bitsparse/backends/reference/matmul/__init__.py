"""Reference definition of products of packed integers."""
