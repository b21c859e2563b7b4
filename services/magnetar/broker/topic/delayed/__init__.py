"""Delayed delivery: the time index of a topic."""
