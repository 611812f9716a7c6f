"""``deepspeed.env_report``, of zerobench."""

from zerobench.compat.runtime.env_report import cli_main, debug_report, main
from zerobench.compat.unoffered import add_names

add_names()

if __name__ == "__main__":
    main()
