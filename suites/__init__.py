"""The suites: what an engine must do, each requirement a test of its own."""
