"""DeepSpeed's surface: its schedules, configuration, engine, launcher and jobs on the reference engine."""
