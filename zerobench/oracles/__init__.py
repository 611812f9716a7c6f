"""What a subject is judged against; nothing here knows the engine."""
