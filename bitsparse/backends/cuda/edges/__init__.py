"""Values per edge on the GPU."""
