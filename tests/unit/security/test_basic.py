"""User names and passwords: formats of hashes, bounds, and the reload of the file."""

import asyncio
import base64
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.stepped_loop import FakeClock

from magnetar.security.api import AuthenticationFailed, Identity, Peer, ProviderUnavailable
from magnetar.security.basic import htpasswd
from magnetar.security.basic.htpasswd import PASSWORD_BYTES_MAX, Users, parsed
from magnetar.security.basic.provider import (
    CHECKS_AT_ONCE_MAX,
    CHECKS_WAITING_MAX,
    NETWORK_CHECKS_WAITING_MAX,
    BasicProvider,
)
from magnetar.security.configuration import BasicProviderConfig
from magnetar.security.errors import ConfigurationError
from magnetar.security.reloading import RELOAD_CHECK_S
from magnetar.security.secret import Secret

PEER = Peer("127.0.0.1")
APR1 = "$apr1$FG4AO6aX$BemPmemJczFeF5R49lJDi."
DES = "Mf45ZQOzZnW1k"
BCRYPT = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
"""Hashes of `secret`; the first two by openssl and libpass."""


def opened(path: Path, clock: FakeClock | None = None) -> BasicProvider:
    config = BasicProviderConfig(users=Secret(f"file://{path}"))
    return BasicProvider(config, clock or FakeClock())


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    path = tmp_path / ".htpasswd"
    path.write_text(f"# users\n\nadmin:{APR1}\nold:{DES}\nnew:{BCRYPT}\n")
    return path


def replace(path: Path, text: str) -> None:
    path.write_text(text)


async def refusal(provider: BasicProvider, data: bytes) -> str:
    with pytest.raises(AuthenticationFailed) as refused:
        await provider.authenticate(Secret(data), PEER)
    assert "secret" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("user", ["admin", "old", "new"])
async def test_the_right_password_gives_the_user_as_role(users_file: Path, user: str) -> None:
    provider = opened(users_file)
    for _ in range(2):
        identity = await provider.authenticate(Secret(f"{user}:secret"), PEER)
        assert identity == Identity(user, "basic")
        for password in ("", "Secret", "secre", "x" * 20):
            await refusal(provider, f"{user}:{password}".encode())


def test_hashes_of_openssl_are_verified() -> None:
    for salt in ("a", "12345678", "./Az"):
        made = subprocess.run(
            ["openssl", "passwd", "-apr1", "-salt", salt, "pässword"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        users = parsed(f"me:{made}".encode(), "file")
        assert users.verify("me", "pässword".encode())
        assert not users.verify("me", b"password")


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
def test_bcrypt_uses_the_first_72_bytes(prefix: str) -> None:
    hashed = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode().replace("$2b$", prefix)
    users = parsed(f"me:{hashed}".encode(), "file")
    assert users.verify("me", b"x" * 80)
    assert not users.verify("me", b"x" * 71)


@pytest.mark.parametrize("data", [b"", b"admin", b"admin:secret:", b":secret", b"\xff:secret"])
async def test_data_other_than_user_and_password_is_refused(users_file: Path, data: bytes) -> None:
    await refusal(opened(users_file), data)


async def test_passwords_have_a_bound(users_file: Path) -> None:
    provider = opened(users_file)
    await refusal(provider, b"admin:" + b"x" * (PASSWORD_BYTES_MAX + 1))
    await refusal(provider, b"admin:" + b"x" * 100_000)
    await refusal(provider, b"admin:sec\0ret")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("admin", "line 1 of file is not user:hash"),
        (f":{APR1}", "line 1 of file is not user:hash"),
        ("admin:secret", "no supported format"),
        ("admin:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "no supported format"),
        ("admin:$apr1$x", "no supported format"),
        ("admin:$2y$31$" + "a" * 53, "cost 31"),
    ],
)
def test_unusable_lines_are_refused_by_number(line: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parsed(line.encode(), "file")
    assert reason in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_a_changed_file_takes_effect_without_a_restart(users_file: Path) -> None:
    clock = FakeClock()
    provider = opened(users_file, clock)
    await provider.authenticate(Secret("admin:secret"), PEER)
    replace(users_file, f"new:{BCRYPT}\n")
    clock.elapsed_s += RELOAD_CHECK_S
    # The password that was right before is not remembered.
    await refusal(provider, b"admin:secret")
    await provider.authenticate(Secret("new:secret"), PEER)
    replace(users_file, "new:plain\n")
    clock.elapsed_s += RELOAD_CHECK_S
    await provider.authenticate(Secret("new:secret"), PEER)


async def test_a_right_password_is_hashed_once(
    users_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    verify = Users.verify

    def counted(self: Users, user: str, password: bytes) -> bool:
        hashed.append(user)
        return verify(self, user, password)

    monkeypatch.setattr(htpasswd.Users, "verify", counted)
    provider = opened(users_file)
    for _ in range(5):
        await provider.authenticate(Secret("admin:secret"), PEER)
    assert hashed == ["admin"]
    for _ in range(2):
        await refusal(provider, b"admin:wrong")
    assert hashed == ["admin"] * 3


def test_an_unknown_user_costs_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bytes] = []
    monkeypatch.setattr(htpasswd, "_verify", lambda _, password: checked.append(password))
    users = parsed(f"admin:{APR1}".encode(), "file")
    assert not users.verify("nobody", b"secret")
    assert checked == [b"secret"]


async def test_a_flood_of_passwords_must_retry(
    users_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    running: list[bytes] = []

    def blocked(self: Users, user: str, password: bytes) -> bool:
        running.append(password)
        return not release.wait(20)

    monkeypatch.setattr(htpasswd.Users, "verify", blocked)
    provider = opened(users_file)

    async def attempt(number: int, address: str) -> type[BaseException]:
        try:
            await provider.authenticate(Secret(f"admin:{number}"), Peer(address))
        except (AuthenticationFailed, ProviderUnavailable) as error:
            return type(error)
        raise AssertionError("a wrong password was accepted")

    addresses = ["10.0.0.1"] * NETWORK_CHECKS_WAITING_MAX
    addresses += [f"10.0.1.{number % 100}" for number in range(CHECKS_WAITING_MAX - len(addresses))]
    waiting = [
        asyncio.create_task(attempt(number, address)) for number, address in enumerate(addresses)
    ]
    async with asyncio.timeout(20):
        while len(running) < CHECKS_AT_ONCE_MAX:  # noqa: ASYNC110 (threads count)
            await asyncio.sleep(0.01)
    assert await attempt(-1, "10.0.2.1") is ProviderUnavailable
    assert len(running) == CHECKS_AT_ONCE_MAX
    release.set()
    async with asyncio.timeout(20):
        assert set(await asyncio.gather(*waiting)) == {AuthenticationFailed}


async def test_an_address_leaves_room_for_others(
    users_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(htpasswd.Users, "verify", lambda *_: release.wait(60))
    provider = opened(users_file)

    def tries(address: str, password: int) -> asyncio.Task[Identity]:
        presented = Secret(f"admin:{password}")
        return asyncio.create_task(provider.authenticate(presented, Peer(address)))

    flood = [tries(f"2001:db8::{n}", n) for n in range(NETWORK_CHECKS_WAITING_MAX)]
    refused, served = tries("2001:db8::ffff", -1), tries("2001:db8:0:1::1", -1)
    async with asyncio.timeout(60):
        with pytest.raises(ProviderUnavailable):
            await refused
        release.set()
        assert (await served).role == "admin"
        await asyncio.gather(*flood)
        assert (await tries("2001:db8::ffff", -2)).role == "admin"


async def test_a_password_that_many_connections_present_is_hashed_once(
    users_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients connect again at once when a broker restarts."""
    hashed: list[str] = []

    def verify(_self: Users, user: str, _password: bytes) -> bool:
        hashed.append(user)
        return True

    monkeypatch.setattr(htpasswd.Users, "verify", verify)
    provider = opened(users_file)
    presented = Secret("admin:secret")
    count = NETWORK_CHECKS_WAITING_MAX
    await asyncio.gather(*(provider.authenticate(presented, PEER) for _ in range(count)))
    assert len(hashed) <= CHECKS_AT_ONCE_MAX


def test_credentials_of_a_request_are_those_of_the_basic_scheme(users_file: Path) -> None:
    provider = opened(users_file)
    encoded = base64.b64encode(b"admin:secret").decode()
    for scheme in ("Basic", "basic", "BASIC"):
        found = provider.presented({"authorization": f"{scheme} {encoded}"}, PEER)
        assert found == Secret("admin:secret")
    assert provider.presented({"authorization": f"Bearer {encoded}"}, PEER) is None
    assert provider.presented({}, PEER) is None


async def test_a_malformed_header_presents_wrong_credentials(users_file: Path) -> None:
    provider = opened(users_file)
    presented = provider.presented({"authorization": "Basic ?"}, PEER)
    assert presented is not None
    await refusal(provider, presented.reveal())


@given(data=st.binary(max_size=60))
def test_garbage_is_authentication_failed_and_nothing_else(data: bytes) -> None:
    users: Any = f"data:,admin:{APR1}"
    provider = BasicProvider(BasicProviderConfig(users=Secret(users)), FakeClock())
    with pytest.raises(AuthenticationFailed):
        asyncio.run(provider.authenticate(Secret(data), PEER))


@pytest.mark.parametrize("hashed", [APR1, DES, BCRYPT], ids=["apr1", "des", "bcrypt"])
def test_a_check_imports_nothing(hashed: str) -> None:
    """Checks run in threads, and the lazy imports of libpass fail if two threads come at once."""
    program = (
        "import sys\n"
        "from magnetar.security.basic.htpasswd import parsed\n"
        f"users = parsed(b'user:{hashed}', 'users')\n"
        "before = set(sys.modules)\n"
        "assert users.verify('user', b'secret')\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"[]\n", b"")
