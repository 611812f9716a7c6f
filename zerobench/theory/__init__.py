"""Closed forms of a Scenario's costs, from the Scenario and the model alone: no engine's code is read or run.

A subject says by :meth:`zerobench.subject.Subject.theory` which forms are its own. :mod:`peers` has those of torch's
engines, :mod:`reference` those of the reference engine, which it puts together from :mod:`memory`: bytes on a rank;
:mod:`traffic`: calls and bytes by collective in a step; :mod:`offload`: bytes off the device; :mod:`layout`: units,
shards and padding; :mod:`touches` and :mod:`rounds`: the order in which parameters are touched, and stage 3's gathers
for it.
"""
