"""Judges a history by all rules."""

import gc
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from tests.history.events import Event
from tests.history.finding import Finding
from tests.history.index import Index
from tests.history.rules import RULES
from tests.history.storage import read

FINDINGS_MAX: Final = 20
"""Maximum number of reported findings per rule."""
PROMISE: Final = "none: the history is incomplete"


def check(events: Iterable[Event]) -> list[Finding]:
    """Returns the contradictions of the promises, at most `FINDINGS_MAX` per rule."""
    index = Index(events)
    found: list[Finding] = []
    for event in index.stray[:FINDINGS_MAX]:
        found.append(Finding("index", PROMISE, "an event of a session that never began", (event,)))
    for rule in RULES.values():
        found += islice(rule(index), FINDINGS_MAX)
    return found


def check_files(*paths: Path) -> list[Finding]:
    """Judges the histories of all clients of a campaign. Raises Malformed."""
    gc.disable()  # a million events hold no cycles, and each collection would visit them all
    try:
        return check(read(*paths))
    finally:
        gc.enable()
