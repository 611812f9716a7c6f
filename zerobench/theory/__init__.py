"""Closed forms of what a Scenario costs, from the Scenario and the model alone: no engine's code is read or run.

:mod:`memory`: bytes resident on a rank; :mod:`traffic`: calls and bytes by collective in a step; :mod:`layout`: units,
shards and padding; :mod:`touches` and :mod:`rounds`: in which order parameters are touched, and what stage 3 gathers
for it; :mod:`peers`: torch's own engines.
"""
