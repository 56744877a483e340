"""What the library and its tests need of cupyx, over the fake CuPy."""
