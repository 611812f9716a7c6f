"""The suites: the requirements on an engine, each a test of its own."""
