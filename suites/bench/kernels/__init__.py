"""How fast the kernels are: ``pytest suites/bench/kernels/bench_cpu.py -n 0``."""
