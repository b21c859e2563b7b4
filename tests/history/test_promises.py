"""Each rule names a promise of the page of guarantees, and the README lists each rule."""

from importlib import import_module
from pathlib import Path

import pytest
from tests.history.finding import PAGE
from tests.history.rules import RULES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_names_a_promise_that_the_page_makes(rule: str) -> None:
    page = " ".join((ROOT / PAGE).read_text().split())
    module = import_module(f"tests.history.rules.{rule}")
    promises = [text for name, text in vars(module).items() if name.endswith("PROMISE")]
    assert promises
    for promise in promises:
        section, _, line = promise.rpartition(": ")
        assert section in page
        assert line in page


def test_the_readme_lists_every_rule() -> None:
    readme = (Path(__file__).parent / "README.md").read_text()
    assert [rule for rule in RULES if f"rules/{rule}.py" not in readme] == []
