"""Training state of the units, and the stores that keep it on the device, in host memory or in files."""
