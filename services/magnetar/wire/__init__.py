"""Pulsar's binary protocol without IO: bytes in, events out, commands to bytes.

The broker, the tests' clients and the fuzzers share it. Nothing here imports asyncio, socket or
ssl, reads a clock or draws a random number.
"""
