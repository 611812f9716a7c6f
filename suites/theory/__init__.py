"""The closed forms: they agree with each other and with the published numbers. No engine runs."""
