"""Programs that find the figures of one chip in ``bitsparse/backends/cuda``: one module a family of kernels, run by ``run.py``."""
