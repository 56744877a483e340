"""The GPU backend: the functions of the other backends on CuPy arrays, enqueued on the current device's current stream."""
