"""`changed_lines(since)`: which lines of which files differ from a commit; `last_release()`."""

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.mutants.suites import ROOT

HUNK: Final = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")
GIT_S_MAX: Final = 60.0
VERSION_FILE: Final = "services/magnetar/__init__.py"
VERSION_LINE: Final = "^__version__"


def changed_lines(since: str, root: Path = ROOT) -> dict[str, set[int]]:
    """By file below the root. Raises `CalledProcessError` for a commit that git does not know."""
    found: dict[str, set[int]] = defaultdict(set)
    file = ""
    for line in _git(root, "diff", "-U0", "--no-renames", since, "--", "*.py").splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ ").removeprefix("b/")
        elif hunk := HUNK.match(line):
            first, number = int(hunk[1]), int(hunk[2] or 1)
            found[file] |= set(range(first, first + number))
    return dict(found)


def last_release(root: Path = ROOT) -> str:
    """The commit that the newest tag `v*` names; before any, the one that set the version."""
    tags = _git(root, "tag", "--merged", "HEAD", "--sort=-v:refname", "--list", "v*").split()
    if tags:
        return tags[0]
    log = ("log", "-1", "--format=%H", f"-G{VERSION_LINE}", "--", VERSION_FILE)
    return _git(root, *log).strip()


def _git(root: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True, timeout=GIT_S_MAX
    ).stdout
