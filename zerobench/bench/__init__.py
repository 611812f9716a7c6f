"""The benchmark: cases trained side by side on a pool of ranks."""
