"""``deepspeed.runtime`` and ``deepspeed.utils``: functions and loaders that scripts call beside the engine."""
