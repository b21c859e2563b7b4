"""The tests of `tests/interop/test_python_acks.py`, on the stand-in."""

from .loading import definitions_of

globals().update(definitions_of("test_python_acks"))
