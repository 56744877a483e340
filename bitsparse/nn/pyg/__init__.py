"""Networks read from models and state dicts of PyTorch and PyTorch Geometric."""
