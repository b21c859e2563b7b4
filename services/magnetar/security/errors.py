"""The error of authentication that cannot be set up."""


class ConfigurationError(ValueError):
    """A key, file or parameter of authentication is not usable. The text shows no secret."""
