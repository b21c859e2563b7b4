"""Pulsar's binary protocol without IO: decodes bytes into events and encodes commands.

The broker, the tests' clients and the fuzzers share it. No module here imports asyncio, socket or
ssl, reads a clock or draws a random number.
"""
