"""Magnetar: a messaging and streaming system that speaks Apache Pulsar's protocol."""

__version__ = "0.1.0"
