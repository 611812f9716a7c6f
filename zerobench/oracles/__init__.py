"""The references that subjects are judged against; nothing here knows the engine."""
