"""The oracle: every backend function again, in slow, plain NumPy.

Nothing here is tuned and nothing is shared with the compiled code except the layout arithmetic of
:mod:`bitsparse.backends.params`. Integers are computed in int64, and each floating-point step is one NumPy operation, so
that each line can be read next to the definition it implements.
"""
