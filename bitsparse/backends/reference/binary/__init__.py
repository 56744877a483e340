"""Reference definition of the aggregation of signs."""
