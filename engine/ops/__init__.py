"""The engine's own arithmetic, one operation to a file, each defined in torch: the definition is the specification."""
