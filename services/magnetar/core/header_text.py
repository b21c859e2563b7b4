"""Checks text before it becomes the value of an HTTP header.

HTTP libraries refuse a value with a line break, and show it in their error: the token of a file
with two lines would be in a traceback, a log or a status.
"""

from typing import Final

NO_HEADER_TEXT: Final = "the token has characters that no HTTP header may have: is it one line?"


def is_header_text(text: str) -> bool:
    """Whether a header may have this value: printable ASCII."""
    return text.isascii() and text.isprintable()
