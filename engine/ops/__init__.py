"""The engine's arithmetic, one operation per file; its definition in torch is the specification."""
