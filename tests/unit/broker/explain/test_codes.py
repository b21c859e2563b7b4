"""The codes: each has a meaning, and docs/run/explain.md has the same table."""

import re
from pathlib import Path

from magnetar.broker.explain.codes import MEANINGS, Code
from magnetar.documents.explain import FINE

PAGE = Path(__file__).resolve().parents[4] / "docs" / "run" / "explain.md"


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Code)


def test_the_page_has_the_codes_and_their_meanings() -> None:
    section = PAGE.read_text().split("## Codes", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    assert rows == [(code.value, text) for code, text in MEANINGS.items()]


def test_the_codes_for_nothing_wrong_exist() -> None:
    assert {Code(code) for code in FINE} == {Code.CAUGHT_UP, Code.FLOWING, Code.PUBLISHING}
