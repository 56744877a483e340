"""Reference definitions of values per edge."""
