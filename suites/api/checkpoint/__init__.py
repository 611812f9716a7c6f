"""The reference engine's checkpoints: calls, crashes, damage, and other engines' layouts."""
