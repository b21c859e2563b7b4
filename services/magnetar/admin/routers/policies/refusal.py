"""The refusal of a policy's value."""

from magnetar.core.errors import MagnetarError


class InvalidPolicy(MagnetarError):
    """A policy cannot have the value."""

    http_status = 412
