"""DeepSpeed's optimizer classes, and what scripts read of its optimizers."""
