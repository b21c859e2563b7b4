"""Dispatchers hand the entries of a subscription to its consumers."""
