"""What the tests of the official client share, on the stand-in."""

from .loading import definitions_of

globals().update(definitions_of("support"))
