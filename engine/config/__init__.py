"""The configuration: DeepSpeed's keys, and the engine's own."""
