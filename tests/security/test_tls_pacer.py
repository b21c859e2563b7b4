"""Handshakes share the loop: their slices, their deadline, their bound."""

import asyncio
from pathlib import Path

import pytest
from tests.security.tls_rig import WITHIN_S, echo_server, exchange
from tests.support.certificates import Authority

from magnetar.security.tls import pacer as pacing
from magnetar.security.tls.pacer import Pacer, pacer
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
