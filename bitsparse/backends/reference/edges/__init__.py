"""Values per edge, defined."""
