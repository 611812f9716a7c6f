"""The configuration, schedules, monitors and messages."""
