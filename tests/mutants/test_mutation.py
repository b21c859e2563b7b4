"""Which mistakes the campaign plants in a file, and how it names them."""

from pathlib import Path

import pytest
from tests.mutants.mutation import Mutation, mutations_of

SOURCE = """
import asyncio

LIMIT = 5

class Queue:
    def __init__(self) -> None:
        self.items: list[int] = []

    async def put(self, item: int, *, last: bool = False) -> bool:
        "Adds an item."
        if len(self.items) >= LIMIT or not item:
            raise ValueError(f"{item} is too much")
        try:
            await self.flushed(item, LIMIT)
        except TimeoutError:
            return False
        finally:
            self.done = True
        return min(item, LIMIT) > 0

    def __repr__(self) -> str:
        return "a" if self.items else "b"
"""


@pytest.fixture
def mutants(tmp_path: Path) -> list[Mutation]:
    file = tmp_path / "queue.py"
    file.write_text(SOURCE)
    return list(mutations_of(file, tmp_path))


@pytest.mark.parametrize(
    "expected",
    [
        ("compares otherwise", "len(self.items) >= LIMIT", "len(self.items) > LIMIT"),
        ("compares otherwise", "len(self.items) >= LIMIT", "len(self.items) < LIMIT"),
        ("drops operand", "len(self.items) >= LIMIT or not item", "without `not item`"),
        ("drops not", "not item", "not not item"),
        ("forces condition", "if len(self.items) >= LIMIT or not item:", "if False:"),
        ("drops statement", "await self.flushed(item, LIMIT)", "pass"),
        ("drops statement", "self.done = True", "pass"),
        ("drops statement", "raise ValueError(f'{item} is too much')", "pass"),
        ("swaps arguments", "self.flushed(item, LIMIT)", "self.flushed(LIMIT, item)"),
        ("lets through", "try:", "lets `TimeoutError` through"),
        ("swallows", "try:", "swallows `TimeoutError`"),
        ("drops clean-up", "try:", "without finally"),
        ("calls twin", "min(item, LIMIT)", "max(item, LIMIT)"),
        ("flips constant", "False", "True"),
    ],
)
def test_each_kind_of_mistake_is_planted(
    mutants: list[Mutation], expected: tuple[str, str, str]
) -> None:
    assert expected in {(each.kind, each.before, each.after) for each in mutants}


SAME = """
def told(items, limit):
    try:
        found = list(zip(items, items, strict=False))
    except ValueError:
        log.error("no pairs")
    try:
        found = max(limit, len(items))
    except TypeError:
        pass
    return found
"""


def test_what_changes_nothing_is_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "same.py"
    file.write_text(SAME)
    found = [(each.kind, each.after) for each in mutations_of(file, tmp_path)]
    kinds = [kind for kind, _ in found]
    assert "swallows" not in kinds, "a handler that only logs, or does nothing"
    assert "drops keyword" not in kinds, "a default that is written out"
    assert ("calls twin", "min(limit, len(items))") in found
    assert ("swaps arguments", "max(len(items), limit)") not in found


def test_texts_for_people_are_left_alone(mutants: list[Mutation]) -> None:
    assert {each.function for each in mutants} == {"Queue.put"}
    assert not [each for each in mutants if "Adds an item" in each.before]


def test_a_change_that_changes_nothing_is_no_mistake(mutants: list[Mutation]) -> None:
    assert not [each for each in mutants if each.after == "min(LIMIT, item)"]


def test_each_mutant_compiles_to_other_code_than_the_original(mutants: list[Mutation]) -> None:
    original = compile(SOURCE, "queue.py", "exec")
    for mutant in mutants:
        assert mutant.compiled().co_consts != original.co_consts, mutant.name


def test_a_name_survives_changes_elsewhere_in_the_file(
    mutants: list[Mutation], tmp_path: Path
) -> None:
    file = tmp_path / "queue.py"
    file.write_text("import os\n\n\nNAME = os.name\n" + SOURCE)
    later = list(mutations_of(file, tmp_path))
    assert [each.key for each in later] == [each.key for each in mutants]
    assert all(one.lines[0] < other.lines[0] for one, other in zip(mutants, later, strict=True))


def test_names_are_unique(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text("def f(a, b):\n    if a < b:\n        return 1\n    return a < b\n")
    names = [each.name for each in mutations_of(file, tmp_path)]
    assert len(set(names)) == len(names) > 4


def test_lines_say_where_a_test_must_have_been(mutants: list[Mutation]) -> None:
    (dropped,) = [each for each in mutants if each.before == "self.done = True"]
    assert [SOURCE.splitlines()[line - 1].strip() for line in dropped.lines] == ["self.done = True"]


def test_changes_that_no_test_could_notice_are_not_planted(tmp_path: Path) -> None:
    file = tmp_path / "logs.py"
    file.write_text(
        "def f(a, b):\n"
        "    try:\n"
        "        return max(a, b)\n"
        "    except OSError as error:\n"
        "        log.info('no answer', error=error)\n"
    )
    kinds = {each.kind for each in mutations_of(file, tmp_path)}
    assert "lets through" in kinds
    assert not kinds & {"swallows", "swaps arguments"}
