"""Checkpoints: the training state of all ranks in a directory, and back, on any number of ranks.

A checkpoint is cut by parameter, not by rank. So a load at another world size, stage, offload or bucket size reads
other slices of the same values. ``calls.py`` has the engine's calls; ``saving.py`` and ``loading.py`` carry them out.

- Values: ``pieces.py`` (what this rank saves), ``rng.py``, ``progress.py`` (counters, groups, schedules), ``plain.py``
  (JSON), ``matching.py`` (what this rank loads), ``memory.py`` (where it reads them), ``apply.py`` (loaded values into
  the engine), ``background.py`` (copies for a thread).
- Files: ``record.py`` (checkpoint.json), ``safetensors.py`` and ``shard_file.py`` (values), ``directory.py`` (names,
  rename, ``latest``).
- Whole models: ``whole.py`` (from an engine), ``offline.py`` (from a directory).
- torch.distributed.checkpoint: ``planners.py`` and ``storage.py`` are its interfaces, ``distributed.py`` calls it.
"""
