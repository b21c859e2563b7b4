"""The page docs/understand/survivors.md: the mutants of the last samples that no test detects.

A campaign of some packages replaces the sections of these packages and keeps all others, since the
results of a campaign are on the machine that ran it.
"""

import re
from typing import Final

from tests.mutants.mutation import Mutation
from tests.mutants.report import Score
from tests.mutants.results import Open
from tests.mutants.suites import ROOT

PAGE: Final = ROOT / "docs" / "understand" / "survivors.md"
NOT_YET: Final = "No test yet."
HEAD: Final = """# Survivors

The mutants that no test detects, from the last sample of each package.
[testing.md](testing.md) describes mutants and the scores. `make mutants` writes this page
(`--sample N --seed TEXT --report --page`): do not edit it. The reasons come from
`tests/mutants/open.toml`.
"""
_SECTION: Final = re.compile(r"^## (\S+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def page_of(page: str, scores: list[Score], sample: str, known: Open) -> str:
    """Returns the page with the sections of `scores` replaced; `sample` describes the sample.

    A package of which no mutant was tried keeps its section.
    """
    sections = {match[1]: match[2].strip() for match in _SECTION.finditer(page)}
    for score in scores:
        if score.tried:
            sections[score.package] = _section(score, sample, known)
    parts = [f"## {package}\n\n{sections[package]}\n" for package in sorted(sections)]
    return "\n".join([HEAD, *parts])


def _section(score: Score, sample: str, known: Open) -> str:
    found = score.tried - score.survived_first
    head = (
        f"The tests of that time killed {found} of {score.tried} mutants ({sample}; without "
        f"{score.equivalent} equivalent); {len(score.survivors) or 'none'} survive today."
    )
    lines = [_line(mutation, known) for mutation, _ in score.survivors]
    return "\n".join([head, *([""] if lines else []), *sorted(lines)])


def _line(mutation: Mutation, known: Open) -> str:
    change = _code(f"{mutation.before} -> {mutation.after}")
    where = f"`{mutation.file}::{mutation.function}`"
    return f"- {where}: {mutation.kind}: {change}. {known.reason(mutation) or NOT_YET}"


def _code(text: str) -> str:
    """The text as code: without backticks, and without what looks like a link."""
    shown = text.replace("`", "'").replace("](", "] (")
    return f"`{shown}`"
