"""How fast the kernels are, beside others that do the same and beside a copy of as many bytes."""
