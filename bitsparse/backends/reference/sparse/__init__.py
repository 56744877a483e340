"""Reference builders of the sparse formats."""
