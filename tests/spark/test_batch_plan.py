"""Plans of batch reads of topics in memory: ends, times, filters, and losses."""

import pytest
from pyspark.sql.datasource import EqualTo
from tests.spark.memory_log import TOPIC, MemoryLog, positions

from magnetar.core.errors import PersistenceError
from magnetar.core.ids import EARLIEST, ID_MAX, Position
from magnetar.jobs.log.ranges import Interval, Range
from magnetar_spark.filters import Bounds
from magnetar_spark.planner import Plan, before, behind, plan_read, times_from

OTHER = f"{TOPIC}-other"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    made = MemoryLog(monkeypatch)
    made.topic(made.closed(3, 2), made.closed(5, 3))
    made.topic(made.closed(7, 2), name=OTHER)
    return made


def planned(
    log: MemoryLog, *filters: EqualTo, topic: str = "public/default/.*", **more: str
) -> Plan:
    named = {"topicsPattern": topic} if "*" in topic else {}
    options = log.options("" if named else topic, **named, **more)
    return log.run(plan_read(options, Bounds(filters)))


def ranges(plan: Plan) -> list[Range]:
    return [each for task in plan.tasks for each in task]


def read(plan: Plan) -> list[str]:
    return positions(ranges(plan))


ALL = ["3:0", "3:1", "5:0", "5:1", "5:2"]


def test_a_topic_that_filters_leave_out_is_not_planned(log: MemoryLog) -> None:
    assert read(planned(log)) == [*ALL, "7:0", "7:1"]
    assert read(planned(log, EqualTo(("__topic",), OTHER))) == ["7:0", "7:1"]
    assert read(planned(log, EqualTo(("__ledgerId",), 5))) == ["5:0", "5:1", "5:2"]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"startingOffsets": '{"public/default/t": "5:1"}'}, ["5:1", "5:2"]),
        ({"endingOffsets": '{"public/default/t": "5:1"}'}, ["3:0", "3:1", "5:0", "5:1"]),
        ({"startingOffsets": "earliest"}, ALL),
        ({"startingOffsets": "latest"}, []),
        ({"endingOffsets": "earliest"}, []),
        (
            {
                "startingOffsets": '{"public/default/t": "3:1"}',
                "endingOffsets": '{"public/default/t": "5:0"}',
            },
            ["3:1", "5:0"],
        ),
    ],
)
def test_both_ends_are_read(log: MemoryLog, more: dict[str, str], wanted: list[str]) -> None:
    assert read(planned(log, topic=TOPIC, **more)) == wanted


@pytest.mark.parametrize(
    ("more", "times"),
    [
        ({}, Interval()),
        ({"startingTime": "3"}, Interval(3, ID_MAX)),
        ({"endingTime": "9"}, Interval(-ID_MAX, 9)),
        ({"startingTime": "3", "endingTime": "9"}, Interval(3, 9)),
    ],
)
def test_times_are_of_every_range(log: MemoryLog, more: dict[str, str], times: Interval) -> None:
    found = ranges(planned(log, topic=TOPIC, **more))
    assert {each.publish_ms for each in found} == {times}


@pytest.mark.parametrize("named", [True, False])
def test_entries_that_were_trimmed_are_lost_to_one_who_names_them(
    log: MemoryLog, named: bool
) -> None:
    log.topic(log.closed(5, 3), trimmed_to=Position(3, 1))
    asked = {"startingOffsets": '{"public/default/t": "3:1"}'} if named else {}
    if named:
        with pytest.raises(PersistenceError, match=f"{TOPIC}: .*set failOnDataLoss to false"):
            planned(log, topic=TOPIC, **asked)
        asked["failOnDataLoss"] = "false"
    assert read(planned(log, topic=TOPIC, **asked)) == ["5:0", "5:1", "5:2"]


def test_tasks_have_so_many_bytes_and_know_their_topics_schemas(log: MemoryLog) -> None:
    log.topic(log.closed(3, 25), log.closed(5, 1))
    plan = planned(log, topic=TOPIC, **{"partition.bytes": "1024"})
    tasks = [[(each.ledger_id, each.first, each.last) for each in task] for task in plan.tasks]
    assert tasks == [[(3, 0, 9)], [(3, 10, 19)], [(3, 20, 24), (5, 0, 0)]]
    partitions = plan.partitions()
    assert len(partitions) == 3
    assert list(plan.schemas) == [TOPIC]
    assert {name for each in partitions for name in each.schemas} == {TOPIC}  # type: ignore[attr-defined]


def test_a_place_and_the_one_behind_it() -> None:
    assert (behind(EARLIEST), before(EARLIEST)) == (EARLIEST, EARLIEST)
    assert (behind(Position(3, 4)), before(Position(3, 4))) == (Position(3, 5), Position(3, 3))
    assert (times_from(None), times_from(5)) == (Interval(), Interval(5, ID_MAX))
