"""What is measured: operands, both sides, checks and times."""
