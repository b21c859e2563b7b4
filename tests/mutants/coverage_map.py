"""Which tests run which lines, measured once for each file of tests and kept beside the results.

A file of tests is measured again if it, its folder's helpers, the tests' support, or a source file
that it ran has changed.
"""

import hashlib
import pickle
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.mutants.suites import ROOT

FORMAT_VERSION: Final = 2
PRODUCT: Final = ("services", "operator", "spark-jobs")
SHARED: Final = ("tests/support", "tests/conftest.py")


@dataclass(slots=True)
class Measured:
    """Of one file of tests: what each test took, whether it passed, and which lines it ran."""

    stamp: str
    seconds: dict[str, float] = field(default_factory=dict)
    """Of wall time."""
    costs_s: dict[str, float] = field(default_factory=dict)
    """What the budget of a mutant counts."""
    failed: set[str] = field(default_factory=set)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    """By source file below the root, by line: names of tests."""
    sources: dict[str, str] = field(default_factory=dict)
    """The digests of these source files."""


class CoverageMap:
    """Measurements by file of tests, kept at `path`. Those of another version are made again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shared = _stamp(SHARED)
        self._files: dict[str, Measured] = {}
        self._stamps: dict[str, str] = {}
        self._digests = _digests(PRODUCT)
        if path.exists():
            kept = pickle.loads(path.read_bytes())  # noqa: S301  # written below
            if kept.get("version") == FORMAT_VERSION:
                self._files = kept["files"]

    def stamp(self, test_file: str) -> str:
        """What a measurement depends on beside the sources: the file, its folder's helpers, and the
        tests' support.

        As of the first call: a file that changes while it is measured is measured again.
        """
        if test_file not in self._stamps:
            self._stamps[test_file] = self._stamp_now(test_file)
        return self._stamps[test_file]

    def _stamp_now(self, test_file: str) -> str:
        folder = (ROOT / test_file).parent
        beside = sorted(each for each in folder.glob("*.py") if not each.name.startswith("test_"))
        texts = [(ROOT / test_file).read_bytes(), *(each.read_bytes() for each in beside)]
        return hashlib.sha256(b"".join(texts) + self._shared.encode()).hexdigest()

    def is_current(self, test_file: str) -> bool:
        known, stamp = self._files.get(test_file), self.stamp(test_file)
        if known is None or known.stamp != stamp:
            return False
        return all(self._digests.get(path) == digest for path, digest in known.sources.items())

    def put(self, measured: dict[str, Measured]) -> None:
        """Keeps measurements, with the digests of the sources that they ran."""
        for one in measured.values():
            one.sources = {path: self._digests.get(path, "") for path in one.lines}
        self._files |= measured
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"version": FORMAT_VERSION, "files": self._files}
        self._path.write_bytes(pickle.dumps(kept))

    def tests_by_line(self, test_files: set[str]) -> dict[str, dict[int, set[str]]]:
        """By source file and line, the passing tests that run it."""
        found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for test_file in test_files & self._files.keys():
            measured = self._files[test_file]
            for source, lines in measured.lines.items():
                for line, tests in lines.items():
                    found[source][line] |= set(tests) - measured.failed
        return found

    def seconds(self, test_files: set[str]) -> dict[str, float]:
        of = [self._files[each].seconds for each in test_files & self._files.keys()]
        return {name: took for each in of for name, took in each.items()}

    def costs_s(self, test_files: set[str]) -> dict[str, float]:
        of = [self._files[each].costs_s for each in test_files & self._files.keys()]
        return {name: cost for each in of for name, cost in each.items()}

    def failed(self, test_files: set[str]) -> set[str]:
        of = [self._files[each].failed for each in test_files & self._files.keys()]
        return set().union(*of)


def _stamp(places: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for place in places:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _digests(places: tuple[str, ...]) -> dict[str, str]:
    """The digests of all source files below these folders, by path below the root."""
    paths = (path for place in places for path in (ROOT / place).rglob("*.py"))
    return {str(path.relative_to(ROOT)): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
