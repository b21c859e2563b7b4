"""The credentials that this process presents to others.

They are configured in the form of Pulsar's clients: a plugin, by its short name or its Java class,
and its parameters. Files are read again on each use, so a renewed token takes effect at once.
"""

from magnetar.security.credentials.parse import Credentials

__all__ = ["Credentials"]
