"""Checkpoints: the training state of all ranks in a directory, and back, on any number of ranks.

A checkpoint is cut by parameter, not by rank. So a load at another world size, stage, offload or bucket size reads
other slices of the same values. ``calls.py`` has the engine's calls; ``saving.py`` and ``loading.py`` carry them out.

- Values: ``pieces.py`` (what this rank saves and wants), ``rng.py``, ``progress.py`` (counters, groups, schedules),
  ``plain.py`` (JSON), ``apply.py`` (loaded values into the engine).
- Files: ``record.py`` (checkpoint.json), ``shard_file.py`` (safetensors), ``directory.py`` (names, rename, ``latest``).
- torch.distributed.checkpoint: ``planners.py`` and ``storage.py`` are its interfaces, ``distributed.py`` calls it.
"""
