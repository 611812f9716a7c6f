"""Options and fixtures of all suites; where zerobench is installed, ``pytest -p suites.plugin`` loads the same."""

pytest_plugins = ["suites.plugin"]
