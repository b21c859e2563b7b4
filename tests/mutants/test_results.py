"""The campaign's memory, and the list of mutants that are no mistakes."""

from pathlib import Path

import pytest
from tests.mutants.mutation import Mutation, mutations_of
from tests.mutants.results import Equivalents, Open, Results, Tried
from tests.mutants.suites import ROOT


@pytest.fixture
def mutants(tmp_path: Path) -> list[Mutation]:
    file = tmp_path / "one.py"
    file.write_text("def f(a, b):\n    return a < b\n")
    return list(mutations_of(file, tmp_path))


def test_the_last_line_of_a_mutant_counts(tmp_path: Path, mutants: list[Mutation]) -> None:
    path = tmp_path / "kept" / "results.jsonl"
    one = mutants[0]
    Results(path).add(Tried("wire", one.key, one.name, "survived"))
    Results(path).add(Tried("wire", one.key, one.name, "killed", "test_f", 3))
    (found,) = Results(path).of(mutants)
    assert (found.outcome, found.by, found.tests) == ("killed", "test_f", 3)


def test_a_file_of_another_version_is_refused(tmp_path: Path, mutants: list[Mutation]) -> None:
    path = tmp_path / "results.jsonl"
    Results(path).add(Tried("wire", mutants[0].key, mutants[0].name, "killed", version=2))
    with pytest.raises(ValueError, match="has version 2"):
        Results(path)


def test_an_entry_names_one_mutant_or_those_of_a_function(
    tmp_path: Path, mutants: list[Mutation]
) -> None:
    path = tmp_path / "equivalent.toml"
    path.write_text(f"[[equivalent]]\nname = {mutants[0].name!r}\nreason = 'one'\n")
    assert [Equivalents(path).reason(each) for each in mutants[:2]] == ["one", None]
    path.write_text("[[equivalent]]\nfunction = 'one.py::f'\nreason = 'all'\n")
    assert {Equivalents(path).reason(each) for each in mutants} == {"all"}
    other = "[[equivalent]]\nfunction = 'one.py::f'\nkind = 'swallows'\nreason = 'none here'\n"
    path.write_text(other)
    assert {Equivalents(path).reason(each) for each in mutants} == {None}


def test_an_entry_gives_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "equivalent.toml"
    path.write_text("[[equivalent]]\nfunction = 'one.py::f'\n")
    with pytest.raises(KeyError, match="reason"):
        Equivalents(path)


def test_open_mutants_have_a_table_of_their_own(tmp_path: Path, mutants: list[Mutation]) -> None:
    path = tmp_path / "open.toml"
    path.write_text(f"[[open]]\nname = {mutants[0].name!r}\nreason = 'needs a second machine'\n")
    assert [Open(path).reason(each) for each in mutants[:2]] == ["needs a second machine", None]
    assert Equivalents(path).reason(mutants[0]) is None


@pytest.mark.parametrize("reasons", [Equivalents, Open])
def test_every_entry_of_the_repository_names_mutants_that_exist(
    reasons: type[Equivalents] | type[Open],
) -> None:
    entries = reasons().entries
    files = {entry.get("name", entry.get("function", "")).partition("::")[0] for entry in entries}
    there: set[tuple[str, ...]] = set()
    for mutation in (each for file in files for each in mutations_of(ROOT / file, ROOT)):
        function = f"{mutation.file}::{mutation.function}"
        there |= {(mutation.name,), (function, mutation.kind), (function, "")}
    keys = [
        (each["name"],) if "name" in each else (each["function"], each.get("kind", ""))
        for each in entries
    ]
    assert not [key for key in keys if key not in there]
