"""Reference definitions of packing and quantising."""
