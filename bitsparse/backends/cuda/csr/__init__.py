"""How kernels over CSR patterns divide and walk them."""
