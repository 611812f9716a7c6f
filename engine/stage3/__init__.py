"""Sharded parameters (ZeRO stage 3): units are whole during their use; afterwards their memory is freed."""
