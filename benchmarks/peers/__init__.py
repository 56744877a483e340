"""What stands on the other side: cuSPARSE, PyTorch Geometric, SciPy, the table of the field."""
