"""Programs that fit the cost figures of a chip in ``bitsparse/backends``: one module per family of kernels, run by ``run.py``."""
