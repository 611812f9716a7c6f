"""The kernels: their bits, their building."""
