"""Judgement: whether a recording is right."""
