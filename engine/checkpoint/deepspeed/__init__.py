"""DeepSpeed's checkpoints: loaded into any engine, and written from a directory of our own.

- Reading: ``pickles.py`` (a file without running code), ``files.py`` (the folder), ``trained.py`` (values, groups and
  step counts, by stage), ``reading.py`` (the source of a load), ``weights.py`` (without an
  engine).
- Writing: ``settings.py`` (DeepSpeed's configuration), ``partitions.py`` (each rank's part, by stage), ``writing.py``
  (the files).
"""
