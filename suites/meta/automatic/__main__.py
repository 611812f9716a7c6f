"""``python -m zerobench.suites.meta.automatic``: a session of automatic mutants."""

from zerobench.suites.meta.automatic.session import main

if __name__ == "__main__":
    main()
