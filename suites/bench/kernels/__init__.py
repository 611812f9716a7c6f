"""How fast the kernels are, beside rivals that do the same and beside a copy of as many bytes."""
