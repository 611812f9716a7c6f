"""The checkout's root: zerobench/pytest_plugin.py finds the suites, and suites/conftest.py has their options."""
