"""The page of survivors: sections of measured packages are replaced, all others stay."""

from pathlib import Path

import pytest
from tests.mutants.mutation import Mutation, mutations_of
from tests.mutants.page import HEAD, NOT_YET, page_of
from tests.mutants.report import Score, scores_of
from tests.mutants.results import Equivalents, Open, Outcome, Results, Tried
from tests.mutants.suites import ROOT, suite_of

SOURCE = "def f(a, b):\n    if a:\n        h(a, b)\n    return g[a](b) if a < b else b\n"
FILE = "services/magnetar/x.py"


@pytest.fixture
def mutants(tmp_path: Path) -> list[Mutation]:
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    return list(mutations_of(path, tmp_path))


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results.jsonl")


def tried(results: Results, mutants: list[Mutation], *outcomes: Outcome) -> list[Score]:
    for mutant, outcome in zip(mutants, outcomes, strict=False):
        results.add(Tried("wire", mutant.key, mutant.name, outcome))
    return scores_of([suite_of("wire")], {"wire": mutants}, results)


def test_a_score_counts_what_was_tried_and_could_be(
    results: Results, mutants: list[Mutation]
) -> None:
    (nothing,) = tried(results, mutants)
    assert (nothing.tried, nothing.share, nothing.passed) == (0, None, True)
    (score,) = tried(results, mutants, "killed", "timeout", "survived", "invalid", "uncovered")
    assert (score.tried, score.killed, score.share) == (4, 2, 0.5)
    assert [tried.outcome for _, tried in score.survivors] == ["survived", "uncovered"]
    assert not score.passed
    assert score.row()["survivors"] == 2


def test_each_survivor_has_a_line_with_its_reason(
    results: Results, mutants: list[Mutation], tmp_path: Path
) -> None:
    path = tmp_path / "open.toml"
    path.write_text(f"[[open]]\nname = {mutants[0].name!r}\nreason = 'Costs a minute.'\n")
    scores = tried(results, mutants, "survived", "uncovered", "killed")
    page = page_of("", scores, "a sample of 9, seed s", Open(path))
    assert page.startswith(HEAD)
    assert "killed 1 of 3 mutants (a sample of 9, seed s; without 0 equivalent); 2 survive" in page
    lines = [line for line in page.splitlines() if line.startswith("- ")]
    assert len(lines) == 2
    assert all(line.startswith(f"- `{FILE}::f`: ") for line in lines)
    assert sorted(line.rpartition("`. ")[2] for line in lines) == ["Costs a minute.", NOT_YET]
    for mutant in mutants[:2]:
        assert any(f": {mutant.kind}: `" in line for line in lines)


def test_a_survivor_that_a_new_test_kills_counts_in_the_sample_and_has_no_line(
    results: Results, mutants: list[Mutation]
) -> None:
    tried(results, mutants, "survived", "killed")
    (score,) = tried(results, mutants, "killed")
    assert (score.killed, score.survived_first) == (2, 1)
    page = page_of("", [score], "all", Open())
    assert "killed 1 of 2 mutants (all; without 0 equivalent); none survive today." in page
    assert not [line for line in page.splitlines() if line.startswith("- ")]


def test_code_in_a_line_is_no_link_of_the_page(results: Results, mutants: list[Mutation]) -> None:
    outcomes: list[Outcome] = ["survived"] * len(mutants)
    page = page_of("", tried(results, mutants, *outcomes), "all", Open())
    assert "g[a] (b)" in page
    assert "](" not in page.removeprefix(HEAD)


def test_packages_that_were_not_tried_keep_their_sections(
    results: Results, mutants: list[Mutation]
) -> None:
    former = "# Old head\n\n## admin\n\nOld, with\n\n- a line\n\n## wire\n\nOld wire.\n"
    kept = page_of(former, tried(results, mutants), "all", Open())
    assert kept == f"{HEAD}\n## admin\n\nOld, with\n\n- a line\n\n## wire\n\nOld wire.\n"
    page = page_of(kept, tried(results, mutants, "killed"), "all", Open())
    assert "## admin\n\nOld, with\n\n- a line\n\n## wire\n" in page
    assert "Old wire" not in page
    assert page_of(page, tried(results, mutants, "killed"), "all", Open()) == page


def test_no_mutant_is_both_open_and_equivalent() -> None:
    def names(entries: list[dict[str, str]]) -> set[str]:
        return {entry.get("name") or entry["function"] for entry in entries}

    assert not names(Open().entries) & names(Equivalents().entries)
    assert (ROOT / "docs" / "understand" / "survivors.md").exists()
