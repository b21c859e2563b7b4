"""The stored forms of the time index of delayed messages, and the schedule against a model."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.topic.delayed.codec_v1 import (
    IndexInvalid,
    decode_head,
    decode_page,
    decode_snapshot,
    describe,
    encode_head,
    encode_page,
    encode_snapshot,
)
from magnetar.broker.topic.delayed.moment import MOMENT_BYTES, moment, position_of, time_of
from magnetar.broker.topic.delayed.schedule import Schedule
from magnetar.core.ids import Position

GOLDEN = Path(__file__).parents[3] / "golden" / "broker" / "delayed-index.txt"
HOUR_MS = 3_600_000
FIRST_MS = 1_800_000_000_000
MOMENTS = sorted(
    moment(FIRST_MS + at * HOUR_MS, 7 + at % 2, entry) for at, entry in enumerate((3, 1, 4, 15))
)
STORED = {
    "snapshot": encode_snapshot(
        Position(8, 20), [11, 12], b"".join(at.to_bytes(MOMENT_BYTES) for at in MOMENTS)
    ),
    "head": encode_head([describe(MOMENTS[:2]), describe(MOMENTS[2:])]),
}

moments = st.builds(
    moment,
    st.integers(FIRST_MS, FIRST_MS + 40 * HOUR_MS),
    st.integers(0, 9),
    st.integers(0, 2**32 - 1),
)
pages = st.lists(moments, min_size=1, max_size=30).map(sorted)


def golden() -> dict[str, bytes]:
    pairs = (line.split() for line in GOLDEN.read_text().splitlines())
    return {name: bytes.fromhex(data) for name, data in pairs}


def test_the_golden_index_is_written_and_read() -> None:
    stored = golden()
    assert {name: stored[name] for name in STORED} == STORED
    assert decode_snapshot(stored["snapshot"]) == (Position(8, 20), [11, 12], MOMENTS)
    assert decode_page(stored["page"]) == MOMENTS
    assert decode_head(stored["head"]) == [describe(MOMENTS[:2]), describe(MOMENTS[2:])]


@given(
    st.integers(-1, 2**48), st.integers(-1, 2**32), st.lists(st.integers(0, 2**48)),
    st.lists(moments),
)  # fmt: skip
def test_a_snapshot_is_read_as_written(
    ledger_id: int, entry_id: int, runs: list[int], near: list[int]
) -> None:
    data = encode_snapshot(
        Position(ledger_id, entry_id), runs, b"".join(at.to_bytes(MOMENT_BYTES) for at in near)
    )
    assert decode_snapshot(data) == (Position(ledger_id, entry_id), runs, near)


@given(st.lists(pages, min_size=1, max_size=4))
def test_a_run_is_read_as_written(run: list[list[int]]) -> None:
    for page in run:
        assert decode_page(encode_page(page)) == page
    described = [describe(page) for page in run]
    assert decode_head(encode_head(described)) == described


@given(st.data(), st.sampled_from(["snapshot", "page", "head"]))
def test_damage_is_noticed(data: st.DataObject, form: str) -> None:
    whole = golden()[form]
    at = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at // 8] ^= 1 << at % 8
    decode = {"snapshot": decode_snapshot, "page": decode_page, "head": decode_head}[form]
    with pytest.raises(IndexInvalid):
        decode(bytes(damaged))
    with pytest.raises(IndexInvalid):
        decode(whole[: at // 8])


@given(
    st.lists(
        st.one_of(
            st.integers(0, 50).map(lambda delay: ("add", delay)),
            st.integers(0, 20).map(lambda step: ("pass", step)),
            st.just(("flush", 0)),
            st.just(("restore", 0)),
        ),
        max_size=60,
    ),
    st.integers(1, 5),
)
def test_a_schedule_releases_each_moment_at_its_time(
    steps: list[tuple[str, int]], released_max: int
) -> None:
    now, schedule = FIRST_MS, Schedule(FIRST_MS)
    expected: dict[tuple[int, int], int] = {}
    for number, (step, value) in enumerate(steps):
        if step == "add":
            delayed = schedule.add(now + value, 1, number)
            assert delayed is (now + value > schedule.due_ms)
            if delayed:
                expected[1, number] = now + value
        elif step == "flush" and schedule.in_memory:
            frozen = schedule.freeze()
            ordered = sorted(frozen)
            run = schedule.flushed(number, [describe(ordered)], ordered)
            assert run.next_page == 1  # its only page stays in memory
        elif step == "restore":
            restored = Schedule(schedule.due_ms)
            restored.restore([*schedule.near()])
            schedule = restored
        else:
            now += value
            more = True
            while more:
                released, more = schedule.release(now, released_max)
                for position in released:
                    assert expected.pop(position) <= now
        assert set(schedule.future) == set(expected)
        assert len(schedule) == len(expected)
        assert (schedule.next_ms or now) >= min(expected.values(), default=now)
    assert all(time_of(at) > schedule.due_ms for at in schedule.near())
    assert {position_of(at) for at in schedule.near()} == set(expected)
