"""The first command that a newcomer is told: one message, by the official client."""

import importlib.util
import sys
from contextlib import suppress
from pathlib import Path


def first_message(service_url: str) -> str:
    """With the interpreter that has the client, where that is this one; else with any `python3`."""
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
