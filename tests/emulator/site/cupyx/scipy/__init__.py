"""The part of cupyx that the library and its tests need, over the fake CuPy."""
