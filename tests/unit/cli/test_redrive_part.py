"""How `magnetar redrive` follows the redrive of a topic over moves, deaths and Ctrl-C."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from magnetar.cli.admin_rest import AdminFailed
from magnetar.cli.redrive_part import Part
from magnetar.documents.redrive import RedriveProgress

Answer = RedriveProgress | BaseException
TOPIC = "persistent://public/default/t-DLQ"


def report(state: str = "running", id_: str = "a", **more: Any) -> RedriveProgress:
    return RedriveProgress(id=id_, state=state, **more)


def lost() -> AdminFailed:
    return AdminFailed("no redrive", 404)


class Brokers:
    """Answers requests in order, and records them."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self._answers = iter(answers)
        self.asked: list[tuple[str, str]] = []

    def __call__(self, method: str, id_: str) -> RedriveProgress:
        self.asked.append((method, id_))
        answer = next(self._answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A clock that only sleeps advance."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("magnetar.cli.redrive_part.time.sleep", sleep)
    monkeypatch.setattr("magnetar.cli.redrive_part.time.monotonic", lambda: now[0])
    return lambda: now[0]


def part(brokers: Brokers, *, limited: bool = False) -> Part:
    return Part(TOPIC, brokers, lambda _: None, limited=limited)


def test_a_redrive_continues_at_the_next_owner_and_sums_up() -> None:
    brokers = Brokers(
        [
            report(moved=0),
            report(moved=3, examined=5, matched=4, skipped={"no_origin": 1}),
            AdminFailed("b: refused"),
            AdminFailed("b: not ready", 503),
            lost(),
            AdminFailed("b: not ready", 503),
            report(id_="b", moved=0),
            report("failed", id_="b", moved=2, error="moved", resumable=True),
            report(id_="c"),
            report("finished", id_="c", moved=1, examined=3, matched=2, skipped={"no_origin": 1}),
        ]
    )
    result, stopped = part(brokers).run()
    assert not stopped
    assert (result.state, result.moved, result.examined, result.matched) == ("finished", 6, 8, 7)
    assert result.skipped == {"no_origin": 1}
    assert [method for method, _ in brokers.asked].count("POST") == 4
    assert brokers.asked[1:5] == [("GET", "a")] * 4
    assert brokers.asked[-1] == ("GET", "c")


def test_a_broker_of_an_earlier_version_gives_no_id() -> None:
    brokers = Brokers([report(id_=""), report(id_="", moved=1), report("finished", "", moved=2)])
    result, _ = part(brokers).run()
    assert (result.state, result.moved) == ("finished", 2)
    assert brokers.asked == [("POST", ""), ("GET", ""), ("GET", "")]


def test_an_order_with_a_limit_is_not_started_again() -> None:
    brokers = Brokers([report(), report(moved=3), lost()])
    result, _ = part(brokers, limited=True).run()
    assert (result.state, result.moved) == ("failed", 3)
    assert "with the limit that is left" in result.error
    assert len(brokers.asked) == 3


@pytest.mark.parametrize("limited", [True, False])
def test_a_lasting_error_ends_it(limited: bool) -> None:
    brokers = Brokers([report(), report("failed", moved=1, error="no right")])
    result, _ = part(brokers, limited=limited).run()
    assert (result.state, result.moved, result.error) == ("failed", 1, "no right")
    brokers = Brokers([report(), AdminFailed("forbidden", 403)])
    result, _ = part(brokers, limited=limited).run()
    assert (result.state, result.error) == ("failed", "forbidden")


def test_the_first_refusal_is_raised() -> None:
    with pytest.raises(AdminFailed, match="not ready"):
        part(Brokers([AdminFailed("not ready", 503)])).run()


def test_it_gives_up_if_it_comes_no_further(clock: Callable[[], float]) -> None:
    def answers() -> Iterable[Answer]:
        yield report(moved=0)
        yield report(moved=7)
        while True:
            yield lost()
            yield report(id_="n")

    result, _ = part(Brokers(answers())).run()
    assert (result.state, result.moved) == ("failed", 7)
    assert "It came no further for 60 s" in result.error
    assert 60 <= clock() <= 62


def test_what_is_moved_or_examined_gives_it_more_time(clock: Callable[[], float]) -> None:
    def answers(dry_run: bool) -> Iterable[Answer]:
        yield report()
        for number in range(200):
            yield lost()
            count: dict[str, Any] = {"examined" if dry_run else "moved": number + 1}
            yield report(id_=str(number), dry_run=dry_run, **count)
        yield report("finished", id_="199", dry_run=dry_run, examined=9)

    for dry_run in (False, True):
        began = clock()
        result, _ = part(Brokers(answers(dry_run))).run()
        assert result.state == "finished"
        assert clock() - began > 60
    assert (result.examined, result.moved) == (9, 0), "a dry run starts again from the beginning"


def test_ctrl_c_stops_its_own_redrive_only() -> None:
    brokers = Brokers(
        [report(), KeyboardInterrupt(), report("stopping", moved=1), report("stopped", moved=2)]
    )
    result, stopped = part(brokers).run()
    assert (result.state, result.moved, stopped) == ("stopped", 2, True)
    assert brokers.asked[2:] == [("DELETE", "a"), ("GET", "a")]
    brokers = Brokers([report(), report(moved=1), KeyboardInterrupt(), lost()])
    result, stopped = part(brokers).run()
    assert (result.state, result.moved, stopped) == ("stopped", 1, True)


def test_ctrl_c_before_an_answer_says_that_it_may_run(capsys: pytest.CaptureFixture[str]) -> None:
    brokers = Brokers([KeyboardInterrupt()])
    _, stopped = part(brokers).run()
    assert stopped
    assert brokers.asked == [("POST", "")]
    assert "it may run" in capsys.readouterr().err
    with pytest.raises(AdminFailed, match="It may run on"):
        part(Brokers([report(), KeyboardInterrupt(), AdminFailed("refused")])).run()
