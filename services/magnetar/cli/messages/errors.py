"""Errors of the commands, and their exit codes."""

from typing import Final

from magnetar.core.errors import MagnetarError

FAILED: Final = 1
"""Exit code if the cluster could not be reached, refused a request, or a message failed."""
USAGE: Final = 2
"""Exit code of arguments that cannot be honored, as argparse's."""
INCOMPLETE: Final = 3
"""Exit code if fewer messages came than `--count`."""
INTERRUPTED: Final = 130
"""Exit code of a command that a signal ended before its work was done."""


class UsageFailed(MagnetarError):
    """An argument, or a combination of arguments, cannot be honored."""


class InputFailed(MagnetarError):
    """The messages to send cannot be read."""
