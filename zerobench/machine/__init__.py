"""The machine: its environment, GPUs and files."""
