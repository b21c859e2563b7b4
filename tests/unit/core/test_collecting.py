"""What survives long passes of the collector is set aside, and looked at again when it has gone."""

import gc
from collections.abc import Iterator

import pytest

from magnetar.core import collecting
from magnetar.core.collecting import OBJECTS_PER_COMPONENT, Collecting


class Component:
    """Something that closes and refers to itself, as a topic does."""

    def __init__(self) -> None:
        self.cycle = self


@pytest.fixture
def begun() -> Iterator[Collecting]:
    one = Collecting()
    one.begin()
    yield one
    gc.callbacks.remove(one._passed)
    gc.unfreeze()


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


def test_a_component_that_is_freed_when_it_closes_is_not_counted(begun: Collecting) -> None:
    component = Component()
    begun.closed(component)
    assert begun.closed_alive == 1
    component.cycle = None  # type: ignore[assignment]
    del component
    assert begun.closed_alive == 0


def test_once_closed_components_could_fill_what_is_frozen_a_pass_includes_all(
    begun: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "CLOSED_ALIVE_MAX", 0)
    components = [Component() for _ in range(50)]
    gc.collect()
    monkeypatch.setattr(collecting, "PASS_S_MAX", 0.0)
    gc.collect()
    monkeypatch.setattr(collecting, "PASS_S_MAX", 1_000.0)
    alive_max = gc.get_freeze_count() // OBJECTS_PER_COMPONENT
    components += [Component() for _ in range(alive_max)]
    for component in components[:alive_max]:
        begun.closed(component)
    assert gc.get_freeze_count() > 0
    begun.closed(components[alive_max])
    assert gc.get_freeze_count() == 0
    del components, component
    gc.collect()
    assert begun.closed_alive == 0
