"""Values per edge: products of their ends, softmax, attention."""
