"""The optimizer: parameter groups, the step, the loss scale and schedulers."""
