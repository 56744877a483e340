"""Values per edge on the host."""
