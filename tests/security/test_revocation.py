"""Keys and passwords are removed while connections that they proved are open."""

import asyncio
import json
from pathlib import Path

import bcrypt
import pytest
from tests.security.sessions import closed_broker, connect_command, connecting, security_of
from tests.support.tokens import SECRET, jwk, private_key, token
from tests.unit.broker.lifecycle.world import World
from tests.unit.broker.session.stage import Client

from magnetar.broker.session import revocation
from magnetar.broker.session.access import Access
from magnetar.core.clock import SystemClock
from magnetar.observe.audit import AuditLog
from magnetar.security import reloading
from magnetar.security.api import Identity, Peer
from magnetar.security.authenticator import ProviderChain, open_authenticator
from magnetar.security.configuration import (
    Authentication,
    BasicProviderConfig,
    TokenProviderConfig,
)
from magnetar.security.secret import Secret
from magnetar.wire.commands import CommandType

WITHIN_S = 10.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "RELOAD_CHECK_S", 0.0)
    monkeypatch.setattr(revocation, "CHECK_S", 0.002)


class Files:
    """The files of keys and passwords of a broker."""

    def __init__(self, root: Path) -> None:
        self.secret, self.keys, self.users = root / "secret", root / "keys", root / "users"
        self.secret.write_bytes(SECRET)
        self.write_keys("old", "new")
        self.write_users(anna="right")
        token_config = TokenProviderConfig(
            secret_key=Secret(f"file://{self.secret}"), key_set=Secret(f"file://{self.keys}")
        )
        users = BasicProviderConfig(users=Secret(f"file://{self.users}"))
        self.config = Authentication(providers=(token_config, users))

    def authenticator(self) -> ProviderChain:
        return open_authenticator(self.config, SystemClock())

    def write_keys(self, *kids: str) -> None:
        numbers = {"old": 0, "new": 1}
        keys = [jwk("RS256", numbers[kid], kid=kid) for kid in kids]
        self.replace(self.keys, json.dumps({"keys": keys}).encode())

    def write_users(self, **passwords: str) -> None:
        lines = [
            f"{user}:{bcrypt.hashpw(word.encode(), bcrypt.gensalt(4)).decode()}\n"
            for user, word in passwords.items()
        ]
        self.replace(self.users, "".join(lines).encode())

    def replace(self, path: Path, content: bytes) -> None:
        written = path.with_suffix(".new")
        written.write_bytes(content)
        written.replace(path)


def signed_by(kid: str) -> str:
    return token({"sub": kid}, "RS256", private_key("RS256", int(kid == "new")), kid=kid).decode()


async def closed(client: Client) -> bool:
    """Whether the broker has closed the connection; waits for it."""
    async with asyncio.timeout(WITHIN_S):
        while not client.socket.closed:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.002)
    return True


async def connected(w: World, data: str, method: str = "token") -> Client:
    """A connected client; a password is hashed in a thread, so the answer takes a while."""
    client = Client(w)
    client.say(CommandType.CONNECT, connect_command(data, method))
    async with asyncio.timeout(WITHIN_S):
        while not client.session.state.connected:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.002)
    client.told()
    return client


async def test_a_removed_key_ends_the_sessions_of_its_tokens_and_no_others(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with closed_broker(authenticator=files.authenticator(), authorization=False) as w:
        topic = await w.topic("t")
        old, new = await connected(w, signed_by("old")), await connected(w, signed_by("new"))
        by_secret = await connected(w, token({"sub": "secret"}).decode())
        await old.produces()
        files.write_keys("new")
        assert await closed(old)
        async with asyncio.timeout(WITHIN_S):
            while len(topic.producers):  # noqa: ASYNC110 - the session ends soon after
                await asyncio.sleep(0.002)
        await new.quiet()
        assert not new.socket.closed
        assert not by_secret.socket.closed
        assert security_of(w).counts.revoked == 1
        again = await connecting(w, signed_by("old"), "token")
        assert again.kinds() == ["ERROR"]


async def test_the_key_of_another_kid_does_not_keep_a_session(tmp_path: Path) -> None:
    """The same kid with another key is a rotation without an overlap: the old tokens end."""
    files = Files(tmp_path)
    async with closed_broker(authenticator=files.authenticator(), authorization=False) as w:
        old = await connected(w, signed_by("old"))
        swapped = {"keys": [jwk("RS256", 1, kid="old"), jwk("RS256", 0, kid="new")]}
        files.replace(files.keys, json.dumps(swapped).encode())
        assert await closed(old)


async def test_a_changed_secret_key_ends_sessions_and_a_broken_file_does_not(
    tmp_path: Path,
) -> None:
    files = Files(tmp_path)
    async with closed_broker(authenticator=files.authenticator(), authorization=False) as w:
        client = await connected(w, token({"sub": "a"}).decode())
        reload = security_of(w).authenticator.reload
        files.replace(files.secret, b"too short")
        assert await reload() == 0
        await asyncio.sleep(0.02)
        assert not client.socket.closed
        files.replace(files.secret, bytes(reversed(SECRET)))
        assert await closed(client)


@pytest.mark.parametrize("passwords", [{"bob": "x"}, {"anna": "another"}])
async def test_a_removed_user_or_a_changed_password_ends_sessions(
    tmp_path: Path, passwords: dict[str, str]
) -> None:
    files = Files(tmp_path)
    async with closed_broker(authenticator=files.authenticator(), authorization=False) as w:
        anna = await connected(w, "anna:right", "basic")
        by_token = await connected(w, signed_by("new"))
        files.write_users(**passwords)
        assert await closed(anna)
        assert not by_token.socket.closed


async def test_a_user_that_is_added_ends_no_session(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with closed_broker(authenticator=files.authenticator(), authorization=False) as w:
        anna = await connected(w, "anna:right", "basic")
        text = files.users.read_text()
        bob = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()
        files.replace(files.users, f"{text}bob:{bob}\n".encode())
        # Callers get the former file while a check of its stamp is under way.
        authenticator = security_of(w).authenticator
        async with asyncio.timeout(WITHIN_S):
            while not await authenticator.reload():  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.002)
        await connected(w, "bob:other", "basic")  # so the new file is in use
        await asyncio.sleep(0.02)
        assert not anna.socket.closed


class SlowProof:
    """An authenticator whose key is removed while a client's proof is under way."""

    def __init__(self) -> None:
        self.removed = False

    async def authenticate(self, method: str, data: Secret, peer: Peer) -> Identity:
        self.removed = True
        return Identity("role", method, holds=lambda: not self.removed)

    def remembered(self, method: str, data: Secret) -> Identity | None:
        return None

    async def reload(self) -> int:
        return 0

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_key_that_is_removed_during_connect_connects_nobody() -> None:
    async with closed_broker(authenticator=SlowProof(), authorization=False) as w:
        client = await connecting(w, "x", "token")
        assert client.socket.closed
        assert client.kinds() == []
        assert security_of(w).counts.accepted == 0
        assert security_of(w).counts.revoked == 1


async def test_the_key_of_a_proxys_client_counts_as_well(tmp_path: Path) -> None:
    files = Files(tmp_path)
    async with closed_broker(
        authenticator=files.authenticator(),
        authorization=False,
        proxy_roles=frozenset({"new"}),
        verify_original=True,
    ) as w:
        proxied = await connecting(
            w,
            signed_by("new"),
            "token",
            original_principal="old",
            original_auth_data=signed_by("old"),
            original_auth_method="token",
        )
        assert proxied.kinds() == ["CONNECTED"]
        files.write_keys("new")
        assert await closed(proxied)


async def test_the_audit_log_has_the_end_of_the_session(tmp_path: Path) -> None:
    files = Files(tmp_path)
    audit = AuditLog(tmp_path / "audit.log", 1 << 20, 2, SystemClock())
    async with closed_broker(
        authenticator=files.authenticator(), authorization=False, audit=audit
    ) as w:
        old = await connected(w, signed_by("old"))
        files.write_keys("new")
        assert await closed(old)
        await security_of(w).close()
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(line["role"], line["allowed"]) for line in lines] == [("old", True), ("old", False)]
    assert "no longer accepted" in lines[1]["reason"]


async def test_a_check_that_fails_ends_its_connection_and_the_others_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path)
    async with closed_broker(authenticator=files.authenticator(), authorization=False) as w:
        first, second = await connected(w, signed_by("old")), await connected(w, signed_by("old"))
        check = Access.check_holds
        failed: list[Access] = []

        def failing(access: Access) -> bool:
            if not failed:
                failed.append(access)
            if access is failed[0]:
                raise RuntimeError("a bug")
            return check(access)

        monkeypatch.setattr(Access, "check_holds", failing)
        files.write_keys("new")
        assert await closed(first)
        assert await closed(second)
        assert security_of(w).counts.revoked == 1
