"""The inputs of the table: `commands/*.txt`, in the order of the files.

A line is a command of `pulsar-admin` with $NAMES. A mark before it says what of its output is
compared: all without a mark, `~` its shape, `?` nothing, only status and exit code. `!` is `?` for
a command that ends before its request is answered, of which Pulsar's tool has some.
`> produce N` publishes messages to $T, and `> transaction` begins a transaction with a message and
an ack of its subscription `s`. Lines share the server's state, so they run in order, on a server
that nobody used before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table of inputs."""

    mode: str
    text: str

    @property
    def command(self) -> str:
        """The group and the command, without what it gets."""
        return " ".join(self.text.split()[:2])


def lines() -> Iterator[Line]:
    """The table of inputs, in order."""
    for path in sorted((HERE / "commands").glob("*.txt")):
        for text in filter(None, map(str.strip, path.read_text().splitlines())):
            marked = text[0] in "~?!>"
            yield Line(text[0] if marked else "", text[1:].strip() if marked else text)
