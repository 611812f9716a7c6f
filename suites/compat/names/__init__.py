"""DeepSpeed's other names: constants, functions, and refusals."""
