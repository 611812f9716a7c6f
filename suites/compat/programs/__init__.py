"""Whole scripts: the seeds' jobs, strangers' scripts, the launcher, and the same beside the installed DeepSpeed."""
