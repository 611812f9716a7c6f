"""``deepspeed.utils.groups``, of zerobench."""

from zerobench.compat.groups import *
from zerobench.compat.groups import __getattr__
