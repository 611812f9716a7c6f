"""The workload: models and data."""
