"""Measurements against a real Pulsar; never part of the test suite."""
