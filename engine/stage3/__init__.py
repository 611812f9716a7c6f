"""Stage 3: parameters that are unsharded while they are in use."""
