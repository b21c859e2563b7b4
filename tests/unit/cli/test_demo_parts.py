"""The demo's flights, plan, reports and summary."""

import json
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.demo.checker import Checker, Expected
from magnetar.cli.demo.flights import (
    FLIGHTS_COUNT,
    MISSING_KEY,
    Flight,
    checksum,
    load,
    number_of,
    parse,
)
from magnetar.cli.demo.plan import CONSUMERS_AT_START, CONSUMERS_MAX, Action, make_plan
from magnetar.cli.demo.progress import Progress
from magnetar.cli.demo.reports import SEEN, Reader, Report, Writer
from magnetar.cli.demo.summary import as_json, as_text

CSV = b"year,tailnum,dest\n2013,N1,IAH\n2013,NA,MIA\n2013,N1,BQN\n2013,,ORD\n"


def test_flights_are_numbered_overall_and_per_aircraft() -> None:
    assert parse(CSV) == [
        Flight(0, "N1", 0, b"2013,N1,IAH"),
        Flight(1, MISSING_KEY, 0, b"2013,NA,MIA"),
        Flight(2, "N1", 1, b"2013,N1,BQN"),
        Flight(3, MISSING_KEY, 1, b"2013,,ORD"),
    ]


def test_a_payload_has_its_number_and_its_row() -> None:
    flight = parse(CSV)[2]
    assert flight.payload == b"2,1,2013,N1,BQN"
    assert number_of(flight.payload) == 2
    assert flight.checksum == checksum("N1", flight.payload) != checksum("N2", flight.payload)


@pytest.mark.parametrize("payload", [b"", b"12", b",1", b"x,1", b"99999999999,1", b"-1,1"])
def test_a_foreign_payload_has_no_number(payload: bytes) -> None:
    assert number_of(payload) == -1


def test_the_package_has_all_flights() -> None:
    flights = load()
    assert len(flights) == FLIGHTS_COUNT
    assert flights[0].key == "N14228"
    assert len({flight.key for flight in flights}) == 4_044
    assert sum(flight.key == MISSING_KEY for flight in flights) == 2_512


@given(st.integers(), st.integers(0, 10), st.integers(0, 60))
def test_a_plan_keeps_the_number_of_consumers_within_its_bounds(
    seed: int, kills: int, changes: int
) -> None:
    steps = make_plan(seed, server_kills=kills, consumer_changes=changes)
    assert steps == make_plan(seed, server_kills=kills, consumer_changes=changes)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert sum(step.action is Action.KILL_SERVER for step in steps) == kills
    consumers = CONSUMERS_AT_START
    for step in steps:
        assert 0 < step.at < 1
        if step.action is Action.JOIN:
            consumers += 1
        elif step.action is not Action.KILL_SERVER:
            consumers -= 1
        assert 1 <= consumers <= CONSUMERS_MAX


def test_reports_survive_any_split_of_the_pipe() -> None:
    sent = [Report(SEEN, 3, number, 2**63, 2**32 - 1, -1) for number in range(10)]
    read_end, write_end = os.pipe()
    thread = threading.Thread(target=Writer(write_end).write, args=(sent,))
    thread.start()
    reader = Reader()
    received: list[Report] = []
    for size in (1, 25, 26, 27, 51, 200):
        received += reader.feed(os.read(read_end, size))
    thread.join(10)
    os.close(write_end)
    os.close(read_end)
    assert received == sent


def test_the_summary_names_the_failed_check() -> None:
    checker = Checker([Expected("k", 0, 1)])
    checker.receipt(0, 0, (1, 0, -1))
    verdict = checker.verdict()
    text = as_text(verdict, Progress(1), "interrupted")
    assert "NO  no receipted message was lost: 1" in text
    assert "ok  no message was invented" in text
    assert "interrupted" in text
    summary = json.loads(json.dumps(as_json(verdict, Progress(1), "")))
    assert summary["ok"] is False
    assert summary["faults"]["lost"] == 1
