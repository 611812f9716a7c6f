"""The GPU's measurements, cut into parts that each end within minutes; ``python -m zerobench.suites.bench.gpu``."""
