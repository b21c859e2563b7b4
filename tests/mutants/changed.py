"""`changed_lines(since)`: which lines of which files differ from a commit."""

import re
import subprocess
from collections import defaultdict
from typing import Final

from tests.mutants.suites import ROOT

HUNK: Final = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")
GIT_S_MAX: Final = 60.0


def changed_lines(since: str) -> dict[str, set[int]]:
    """By file below the root. Raises `CalledProcessError` for a commit that git does not know."""
    command = ["git", "diff", "-U0", "--no-renames", since, "--", "*.py"]
    done = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=GIT_S_MAX
    )
    found: dict[str, set[int]] = defaultdict(set)
    file = ""
    for line in done.stdout.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ ").removeprefix("b/")
        elif hunk := HUNK.match(line):
            first, number = int(hunk[1]), int(hunk[2] or 1)
            found[file] |= set(range(first, first + number))
    return dict(found)
