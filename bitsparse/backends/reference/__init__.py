"""The oracle: every backend function once more in slow, plain NumPy.

Nothing here is tuned and nothing is shared with the compiled code except the layout arithmetic of
:mod:`bitsparse.backends.params`. Integers are computed in int64, floating-point steps one NumPy operation at a time, so
each line can be read next to the definition it implements.
"""
