"""DeepSpeed's optimizer classes, and the attributes of its optimizers that scripts read."""
