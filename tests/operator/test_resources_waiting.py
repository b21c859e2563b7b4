"""Who waits for a cluster that does not answer: not for long, and all go on with the first."""

from magnetar_operator.catalog.memory import OUTAGE_PAUSE_MAX_S, PAUSE_MAX_S, Memory
from magnetar_operator.engine.queue import ObjectKey, ReconcileQueue

URL = "http://brokers:8080"
FIRST, SECOND, OTHER = (
    ObjectKey("Topic", "default", name) for name in ("first", "second", "other")
)


async def test_pauses_grow_but_stay_short_in_an_outage() -> None:
    memory = Memory(ReconcileQueue(1, 60.0))
    long = [memory.pause_s(FIRST) for _ in range(20)]
    assert long[0] < long[3] < long[-1]
    assert PAUSE_MAX_S / 2 < long[-1] <= PAUSE_MAX_S
    short = [memory.pause_s(SECOND, OUTAGE_PAUSE_MAX_S) for _ in range(20)]
    assert short[0] < short[-1] <= OUTAGE_PAUSE_MAX_S


async def test_the_first_success_wakes_all_resources_that_wait_for_that_cluster() -> None:
    work = ReconcileQueue(1, 60.0)
    memory = Memory(work)
    for key in (FIRST, SECOND, OTHER):
        work.changed(key, {"metadata": {"name": key.name}})
        work._due_at.clear()
        memory.wait_for_cluster("http://elsewhere:8080" if key is OTHER else URL, key)
    memory.answered(URL, FIRST)
    assert set(work._due_at) == {SECOND}
    work._due_at.clear()
    memory.answered(URL, SECOND)
    assert not work._due_at, "nobody waits any longer"
