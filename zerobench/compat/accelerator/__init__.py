"""``get_accelerator()`` and the builders of compiled operations."""
