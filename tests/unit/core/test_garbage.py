"""Survivors of long passes are frozen, and thawed once enough of them may be garbage."""

import gc
from collections.abc import Iterator

import pytest

from magnetar.core import garbage
from magnetar.core.garbage import OBJECTS_PER_COMPONENT, GarbagePolicy


class Component:
    """A component with a reference cycle, as a topic has."""

    def __init__(self) -> None:
        self.cycle = self


@pytest.fixture
def begun() -> Iterator[GarbagePolicy]:
    policy = GarbagePolicy()
    policy.begin()
    yield policy
    gc.callbacks.remove(policy._passed)
    gc.unfreeze()


def test_survivors_of_a_long_pass_are_frozen(
    begun: GarbagePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    monkeypatch.setattr(garbage, "PASS_S_MAX", 0.0)
    kept = [[number] for number in range(1_000)]
    gc.collect()
    assert begun.frozen >= 1
    collectable = {id(one) for one in gc.get_objects()}
    assert not any(id(one) in collectable for one in kept)


def test_short_passes_and_young_generations_freeze_nothing(begun: GarbagePolicy) -> None:
    gc.collect(0)
    gc.collect(1)
    assert begun.frozen == 0


def test_a_component_that_is_freed_when_it_closes_is_not_counted(begun: GarbagePolicy) -> None:
    component = Component()
    begun.closed(component)
    assert begun.closed_alive == 1
    component.cycle = None  # type: ignore[assignment]
    del component
    assert begun.closed_alive == 0


def test_once_closed_components_outnumber_frozen_ones_a_pass_includes_all(
    begun: GarbagePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "CLOSED_ALIVE_MAX", 0)
    components = [Component() for _ in range(50)]
    gc.collect()
    monkeypatch.setattr(garbage, "PASS_S_MAX", 0.0)
    gc.collect()
    monkeypatch.setattr(garbage, "PASS_S_MAX", 1_000.0)
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
