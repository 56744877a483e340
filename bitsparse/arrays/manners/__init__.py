"""The everyday members of :class:`scipy.sparse.csr_array` for the sparse arrays: a module for each kind, and the class that joins them.

On the CPU what is exact and quick in SciPy is asked of SciPy, through a matrix that shares the array's memory. What works on NumPy's and
CuPy's arrays alike works on a GPU too; the rest is refused there by name.
"""
