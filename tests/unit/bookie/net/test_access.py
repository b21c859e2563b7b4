"""What the role in a client's certificate may request of a bookie."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority

from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.net.access import OPEN, Access, Right
from magnetar.bookie.net.protocol_v1 import AnyFrame, Frame

from .client_rig import Wire
from .connection_rig import Rig
from .peers import IDENTITY

ACCESS = Access(members=frozenset({"broker", "bookie"}), readers=frozenset({"job"}))


class CertifiedWire(Wire):
    """A TLS connection whose client has presented a certificate."""

    def __init__(self, certificate: bytes | None) -> None:
        super().__init__()
        self.certificate = certificate
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.verify_mode = ssl.CERT_OPTIONAL

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" else super().get_extra_info(name, default)

    def getpeercert(self, binary_form: bool) -> bytes | None:
        assert binary_form
        return self.certificate


def connect(rig: Rig, certificate: bytes | None) -> None:
    """Connects a client with this certificate in place of the rig's."""
    rig.server.access = ACCESS
    rig.connection, rig.wire = rig.connection.__class__(rig.server), CertifiedWire(certificate)
    rig.connection.connection_made(rig.wire)


def test_a_role_has_the_rights_of_its_list_and_of_no_other(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    rights = {"broker": Right.ALL, "bookie": Right.ALL, "job": Right.READ, "client": Right.NONE}
    for role, right in rights.items():
        certificate = ca.issue(role).der
        assert ACCESS.of(certificate) is right
        assert OPEN.of(certificate) is Right.ALL
        assert Access(readers=frozenset({"job"})).of(certificate) is Right.ALL, "nobody is listed"
    assert ACCESS.of(None) is Right.NONE
    assert ACCESS.of(b"no certificate") is Right.NONE
    assert OPEN.of(None) is Right.ALL


REQUESTS = {
    "read": (protocol.READ, messages.encode_read(1, 2, 2, 10), 0),
    "fencing read": (protocol.READ, messages.encode_read(1, 2, 2, 10), protocol.FLAG_FENCE),
    "end": (protocol.LEDGER_END, messages.encode_ledger(1), 0),
    "fencing end": (protocol.LEDGER_END, messages.encode_ledger(1), protocol.FLAG_FENCE),
    "delete": (protocol.DELETE, messages.encode_ledger(1), 0),
    "confirm": (protocol.CONFIRM, messages.encode_confirm([(1, 2)]), 0),
}


@pytest.mark.parametrize("role", ["broker", "job"])
@pytest.mark.parametrize("request_", REQUESTS)
async def test_a_reader_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: str, request_: str
) -> None:
    """It fences no ledger either, which would end the ledger for its writer."""
    rig = Rig(monkeypatch)
    connect(rig, Authority(tmp_path).issue(role).der)
    await rig.hello()
    kind, payload, flags = REQUESTS[request_]
    rig.say(kind, 1, payload, flags)
    answers = await rig.said()
    allowed = role == "broker" or request_ in ("read", "end")
    assert bool(rig.bookie.begun) is allowed
    assert not rig.ended, "the client may go on"
    if not allowed:
        assert refused(answers)
        rig.read(2)
        await rig.said()
        assert [name for name, _ in rig.bookie.begun] == ["read"]


@pytest.mark.parametrize("role", ["broker", "job"])
async def test_a_reader_adds_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: str
) -> None:
    rig = Rig(monkeypatch)
    connect(rig, Authority(tmp_path).issue(role).der)
    await rig.hello()
    rig.add(1)
    answers = await rig.said()
    assert len(rig.bookie.adds) == (1 if role == "broker" else 0)
    assert (answers == []) is (role == "broker")


@pytest.mark.parametrize("role", ["client", None])
async def test_a_client_of_another_role_is_refused_at_its_hello(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: str | None
) -> None:
    rig = Rig(monkeypatch)
    connect(rig, None if role is None else Authority(tmp_path).issue(role).der)
    rig.say(protocol.HELLO, 0, messages.encode_hello(messages.Hello(IDENTITY, "ours")))
    assert "does not serve the client's role" in await rig.farewell()
    assert rig.ended


def refused(answers: list[AnyFrame]) -> bool:
    (frame,) = answers
    return isinstance(frame, Frame) and frame.kind == protocol.FAILED
