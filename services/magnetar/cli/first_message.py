"""The command that banners suggest first: it publishes a message with the official client."""

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


def _interpreter() -> str:
    if importlib.util.find_spec("pulsar") is None:
        return "python3"
    path = Path(sys.executable)
    with suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return str(path)
