"""Training state: the units of a model on one rank, and the stores of the rank's own states.

``unit.py`` is one unit, ``portion.py`` the part of it that a rank owns, ``resharded.py`` its parameters if they are not
whole. ``stores.py`` has the two kinds of store, ``assignment.py`` assigns them to units. Each medium has its own
stores: ``device.py``, ``host.py``, ``files.py`` and ``files_parameters.py``. ``copies.py`` copies between device and
host, ``scratch.py`` reads and writes a file. The medium changes no bit of the results.
"""
