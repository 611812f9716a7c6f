"""``deepspeed.utils.groups``, of zerobench."""

from zerobench.compat.comm.groups import *
from zerobench.compat.comm.groups import __getattr__
