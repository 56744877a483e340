"""Values per edge: products of the features of both ends, softmax and attention."""
