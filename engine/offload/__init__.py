"""Offload: owners' states in host memory or in files. Where a state is kept changes no bit of what is computed.

A :class:`~engine.places.Place` keeps what the optimizer steps, a :class:`~engine.places.Home` keeps a unit's shard of
the parameters. ``host.py`` and ``nvme.py`` hold the places and ``shards.py`` the homes; ``copies.py`` carries between
device and host, ``files.py`` between host and file; ``arrange.py`` decides which unit gets which.
"""
