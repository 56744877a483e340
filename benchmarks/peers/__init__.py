"""The peers: cuSPARSE, PyTorch Geometric, SciPy, and the table of the field."""
