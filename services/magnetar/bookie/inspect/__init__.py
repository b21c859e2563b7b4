"""Offline inspection of a bookie's data directory, without changing it."""
