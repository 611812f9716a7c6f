"""Training state: the units of a model on one rank, and the stores that keep what the rank owns of them.

``unit.py`` is one unit, ``portion.py`` the part of it that a rank owns, ``resharded.py`` its parameters while they are
not whole. ``stores.py`` has the two kinds of store, ``assignment.py`` assigns them to units. Each medium has its
stores: ``device.py``, ``host.py``, ``files.py`` and ``files_parameters.py``. ``copies.py`` copies between device and
host, ``scratch.py`` reads and writes a file. The medium changes no bit of the results.
"""
