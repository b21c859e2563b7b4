"""The commands that banners suggest: the first message with the official client, and `magnetar`."""

import importlib.util
import sys
from contextlib import suppress
from pathlib import Path


def first_message(service_url: str) -> str:
    """The command, run by this interpreter if it has the client, otherwise by `python3`."""
    return (
        f"{_interpreter()} -c \"import pulsar; c = pulsar.Client('{service_url}'); "
        "print(c.create_producer('hello').send(b'hi')); c.close()\""
    )


def magnetar_command() -> str:
    """The `magnetar` of this interpreter, as a path unless it is not installed beside it."""
    path = Path(sys.executable).with_name("magnetar")
    return _shown(path) if path.is_file() else "magnetar"


def _interpreter() -> str:
    if importlib.util.find_spec("pulsar") is None:
        return "python3"
    return _shown(Path(sys.executable))


def _shown(path: Path) -> str:
    with suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return str(path)
