"""Support of the suites: strategies, trials, and engines under special conditions."""
