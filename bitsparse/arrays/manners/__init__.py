"""Common members of :class:`scipy.sparse.csr_array` for the sparse arrays: a module for each kind, and the class that joins them.

On the CPU, operations that are exact and fast in SciPy are computed by SciPy, on a matrix that shares the array's memory. Code that works
on NumPy and CuPy arrays alike serves GPUs too; all other operations raise an error there that names them.
"""
