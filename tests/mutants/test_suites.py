"""The campaign's lists name what exists: folders, files, and equivalent mutants."""

from functools import cache

import pytest
from tests.mutants.mutation import mutations_of
from tests.mutants.results import Equivalents
from tests.mutants.suites import ROOT, SUITES, Suite


@pytest.mark.parametrize("suite", SUITES, ids=[suite.name for suite in SUITES])
def test_sources_and_tests_of_a_suite_exist(suite: Suite) -> None:
    missing = [path for path in (*suite.sources, *suite.tests) if not (ROOT / path).exists()]
    assert not missing
    assert list(suite.files())


@cache
def _names(file: str) -> frozenset[str]:
    path = ROOT / file
    return (
        frozenset(each.name for each in mutations_of(path, ROOT)) if path.exists() else frozenset()
    )


def test_equivalent_mutants_exist() -> None:
    """A stale entry would hide that its mutant, under another name, is not known."""
    stale = []
    for entry in Equivalents().entries:
        name = entry.get("name") or f"{entry['function']}:"
        names = _names(name.partition("::")[0])
        if name not in names and not (
            "function" in entry and any(n.startswith(name) for n in names)
        ):
            stale.append(name)
    assert not stale
