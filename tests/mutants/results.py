"""The campaign's memory: one JSON line a mutant tried, and the mutants known to be equivalent.

The last line of a key counts, so a campaign that was cut off goes on where it stopped, and a
survivor that a new test kills is corrected by trying it again.
"""

import json
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from tests.mutants.mutation import Mutation

FORMAT_VERSION: Final = 1
EQUIVALENTS: Final = Path(__file__).with_name("equivalent.toml")
OPEN: Final = Path(__file__).with_name("open.toml")

Outcome = Literal["killed", "timeout", "survived", "uncovered", "invalid"]
KILLED: Final = frozenset({"killed", "timeout"})


@dataclass(frozen=True, slots=True)
class Tried:
    """What the tests said of one mutant. `by` is the test that failed, or the simulation's seed."""

    package: str
    key: str
    name: str
    outcome: Outcome
    by: str = ""
    tests: int = 0
    version: int = FORMAT_VERSION


class Results:
    """A file of tried mutants. Raises `ValueError` for a file of another version."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tried: dict[str, Tried] = {}
        self._first: dict[str, Tried] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for line in path.read_text().splitlines():
                one = Tried(**json.loads(line))
                if one.version != FORMAT_VERSION:
                    raise ValueError(f"{path} has version {one.version}: delete it")
                self._keep(one)

    def _keep(self, one: Tried) -> None:
        self._tried[one.key] = one
        self._first.setdefault(one.key, one)

    def add(self, one: Tried) -> None:
        self._keep(one)
        with self._path.open("a") as file:
            print(json.dumps(asdict(one)), file=file)

    def get(self, mutation: Mutation) -> Tried | None:
        return self._tried.get(mutation.key)

    def first(self, mutation: Mutation) -> Tried | None:
        """The mutant's first result, before the tests that it led to."""
        return self._first.get(mutation.key)

    def of(self, mutations: Iterable[Mutation]) -> list[Tried]:
        return [one for each in mutations if (one := self.get(each)) is not None]


class Reasons:
    """Mutants with the reason why no test detects them, from a file.

    An entry of the file's `table` names one mutant (`name`), or all mutants of a function
    (`function`, with `kind` only those of a kind). Raises `KeyError` for an entry without a reason.
    """

    def __init__(self, path: Path, table: str) -> None:
        text = path.read_text() if path.exists() else ""
        self.entries: list[dict[str, str]] = tomllib.loads(text).get(table, [])
        self._reasons: dict[tuple[str, ...], str] = {
            _entry_key(each): each["reason"] for each in self.entries
        }

    def reason(self, mutation: Mutation) -> str | None:
        function = f"{mutation.file}::{mutation.function}"
        for key in ((mutation.name,), (function, mutation.kind), (function, "")):
            if key in self._reasons:
                return self._reasons[key]
        return None


class Equivalents(Reasons):
    """Mistakes that change nothing that anyone is promised: they count in no score."""

    def __init__(self, path: Path = EQUIVALENTS) -> None:
        super().__init__(path, "equivalent")


class Open(Reasons):
    """Survivors that break something, with the reason why no test detects them yet."""

    def __init__(self, path: Path = OPEN) -> None:
        super().__init__(path, "open")


def _entry_key(entry: dict[str, str]) -> tuple[str, ...]:
    if "name" in entry:
        return (entry["name"],)
    return entry["function"], entry.get("kind", "")
