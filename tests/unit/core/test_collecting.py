"""What survives long passes of the collector is set aside, and looked at again when it has gone."""

import gc
from collections.abc import Iterator

import pytest

from magnetar.core import collecting
from magnetar.core.collecting import LET_GO_MIN, Collecting


@pytest.fixture
def begun() -> Iterator[Collecting]:
    one = Collecting()
    before = gc.get_freeze_count()
    one.begin()
    yield one
    gc.callbacks.remove(one._passed)
    gc.unfreeze()
    assert before >= 0


def test_a_long_pass_is_the_last_over_what_it_found(
    begun: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    monkeypatch.setattr(collecting, "PASS_S_MAX", 0.0)
    frozen = gc.get_freeze_count()
    kept = [[number] for number in range(1_000)]
    gc.collect()
    assert begun.frozen >= 1
    assert gc.get_freeze_count() >= frozen + len(kept)


def test_short_passes_and_young_generations_set_nothing_aside(begun: Collecting) -> None:
    gc.collect(0)
    gc.collect(1)
    assert begun.frozen == 0


def test_once_more_was_let_go_of_than_is_left_all_is_looked_at(
    begun: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "PASS_S_MAX", 0.0)
    gc.collect()
    monkeypatch.setattr(collecting, "PASS_S_MAX", 1_000.0)
    begun.let_go(LET_GO_MIN, 2 * LET_GO_MIN)
    assert gc.get_freeze_count() > 0
    begun.let_go(LET_GO_MIN + 1, 2 * LET_GO_MIN)
    assert gc.get_freeze_count() == 0
