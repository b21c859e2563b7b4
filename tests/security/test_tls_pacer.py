"""Handshakes share the loop: their slices, their deadline, their bound."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.security.tls_rig import WITHIN_S, echo_server, exchange
from tests.support.certificates import Authority

from magnetar.security.tls import pacer as pacing
from magnetar.security.tls.pacer import SLICE_S, Pacer, pacer
from magnetar.security.tls.reload import open_server_tls
from magnetar.security.tls.settings import ServerTlsConfig


class Step:
    """A handshake that records when it advances and why it ends."""

    def __init__(self, seen: list[str], name: str) -> None:
        self.seen, self.name = seen, name

    def advance(self) -> None:
        self.seen.append(self.name)

    def give_up(self, reason: str) -> None:
        self.seen.append(f"{self.name}: {reason}")


async def test_others_have_a_turn_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "SLICE_S", 0.0)
    seen: list[str] = []
    paced = Pacer(asyncio.get_running_loop())
    for number in range(3):
        paced.due(Step(seen, str(number)))

    for _ in range(4):
        await asyncio.sleep(0)
        seen.append("receipt")
    assert seen == ["0", "receipt", "1", "receipt", "2", "receipt", "receipt"]


async def test_a_slice_has_as_many_handshakes_as_fit() -> None:
    seen: list[str] = []
    paced = Pacer(asyncio.get_running_loop())
    for number in range(3):
        paced.due(Step(seen, str(number)))
    await asyncio.sleep(0)
    assert seen == ["0", "1", "2"]


class Timed(Step):
    """A handshake that takes some of the clock's time."""

    def __init__(self, seen: list[str], name: str, clock: list[float], takes_s: float) -> None:
        super().__init__(seen, name)
        self._clock, self._takes_s = clock, takes_s

    def advance(self) -> None:
        super().advance()
        self._clock[0] += self._takes_s


async def test_a_handshake_alone_runs_at_once_until_the_slice_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, seen = [100.0], cast("list[str]", [])
    monkeypatch.setattr(pacing, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    paced = Pacer(asyncio.get_running_loop())
    third = SLICE_S * 0.4
    for name in "abcde":
        paced.now_or_due(Timed(seen, name, clock, third))
    assert seen == ["a", "b", "c"]  # 1.2 slices; the others wait for the loop's next turn
    await asyncio.sleep(0)
    assert seen == ["a", "b", "c", "d", "e"]

    clock[0] += 2 * SLICE_S
    paced.due(Step(seen, "f"))
    paced.now_or_due(Step(seen, "g"))
    assert seen[-1] == "e"  # "g" does not overtake "f"
    await asyncio.sleep(0)
    assert seen[-2:] == ["f", "g"]

    clock[0] += 2 * SLICE_S
    paced.now_or_due(Step(seen, "h"))
    assert seen[-1] == "h"


class Broken(Step):
    """A handshake with a bug."""

    def advance(self) -> None:
        super().advance()
        raise LookupError(self.name)


async def test_a_bug_in_one_handshake_stops_no_other() -> None:
    seen: list[str] = []
    loop = asyncio.get_running_loop()
    paced, errors = Pacer(loop), cast("list[object]", [])
    loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
    paced.due(Broken(seen, "a"))
    paced.due(Step(seen, "b"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert seen == ["a", "b"]
    assert [str(error) for error in errors] == ["a"]
    with pytest.raises(LookupError):
        paced.now_or_due(Broken(seen, "c"))
    paced.due(Step(seen, "d"))
    await asyncio.sleep(0)
    assert seen == ["a", "b", "c", "d"]


async def test_beyond_the_bound_the_oldest_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "UNFINISHED_MAX", 2)
    seen: list[str] = []
    paced = Pacer(asyncio.get_running_loop())
    first, second, third = (Step(seen, name) for name in "abc")
    paced.begin(first)
    paced.begin(second)
    paced.end(second)
    paced.begin(third)
    assert seen == []
    paced.begin(second)
    assert seen == ["a: too many handshakes are under way"]
    assert paced.unfinished == 2
    assert paced.stats.timed_out == 1


async def test_silent_connections_end_and_others_do_not_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "HANDSHAKE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(pacing, "CHECK_S", 0.05)
    ca = Authority(tmp_path)
    files = ca.issue("server")
    tls = open_server_tls(ServerTlsConfig(cert_file=files.cert, key_file=files.key))
    async with echo_server(tls) as server:
        silent = [await server.client(None) for _ in range(50)]
        streams = await server.client(ca.client_context())
        assert await exchange(streams, b"served") == b"served"
        async with asyncio.timeout(WITHIN_S):
            for reader, _ in silent:
                assert await reader.read() == b""
        assert await exchange(streams, b"still") == b"still"
        assert pacer().stats.timed_out == 50


async def test_three_hundred_clients_at_once_are_all_served(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    files = ca.issue("server")
    tls = open_server_tls(ServerTlsConfig(cert_file=files.cert, key_file=files.key))
    context = ca.client_context()
    async with echo_server(tls) as server:
        streams = await asyncio.gather(*(server.client(context) for _ in range(300)))
        answers = await asyncio.gather(*(exchange(pair, b"hello") for pair in streams))
        assert set(answers) == {b"hello"}
        assert pacer().stats.completed == 300
