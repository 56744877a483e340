"""Operands: the forms in which kernels get sparse and dense arguments, and the arrays that results go to."""
