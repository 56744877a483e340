"""The measured cases: operands, both sides, checks and times."""
