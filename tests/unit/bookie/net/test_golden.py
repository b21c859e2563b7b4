"""Frames of version 1 never change: other releases send and expect these bytes."""

from pathlib import Path

from magnetar.bookie.api import BookieIdentity, EntryProof, EntryProofs, LedgerEnd, ProofKind
from magnetar.bookie.net import messages_v1 as messages
from magnetar.bookie.net import protocol_v1 as protocol
from magnetar.bookie.packed import pack

GOLDEN = Path(__file__).parents[3] / "golden" / "bookie_net" / "frames-v1.txt"
KINDS = (
    *range(protocol.HELLO, protocol.CONFIRM + 1),
    *range(protocol.WELCOME, protocol.CONFIRMED + 1),
    protocol.FAILED,
    protocol.ADD_FAILED,
    protocol.CLOSING,
)
WHO = BookieIdentity("bookie-1", "393351e6-9809-489c-885e-50a3f0680580")


def frames() -> dict[str, bytes]:
    """One frame of each kind, and each form of those that have several."""
    small = protocol.encode_frame
    failure = messages.encode_failure(messages.Failure(8, "damaged", "/entry-logs/1.log", 4096))
    proofs = [EntryProof(4 + n, kind, n, n) for n, kind in enumerate(ProofKind)]
    result = {
        "hello": small(protocol.HELLO, 0, 0, messages.encode_hello(messages.Hello(WHO, "c", "me"))),
        "read": small(protocol.READ, protocol.FLAG_FENCE, 1, messages.encode_read(7, 0, 9, 1000)),
        "ledger_end": small(protocol.LEDGER_END, 0, 2, messages.encode_ledger(7)),
        "prove": small(protocol.PROVE, 0, 3, messages.encode_prove(7, 0, 9, 100)),
        "delete": small(protocol.DELETE, 0, 4, messages.encode_ledger(7)),
        "list": small(protocol.LIST, 0, 5, messages.encode_list(-1, 100)),
        "ping": small(protocol.PING, 0, 6),
        "info": small(protocol.INFO, 0, 7),
        "confirm": small(protocol.CONFIRM, 0, 8, messages.encode_confirm([(7, 9), (8, 0)])),
        "welcome": small(
            protocol.WELCOME, 0, 0, messages.encode_welcome(messages.Welcome(WHO, 1 << 26, "c"))
        ),
        "added": protocol.encode_added(protocol.FLAG_READ_ONLY, 1, 3),
        "end": small(protocol.END, 0, 2, messages.encode_end(LedgerEnd(5, 6, True, 700))),
        "proofs": small(protocol.PROOFS, 0, 3, messages.encode_proofs(EntryProofs(proofs, 10))),
        "deleted": small(protocol.DELETED, 0, 4),
        "ledgers": small(protocol.LEDGERS, 0, 5, messages.encode_ledgers([1, 5], more=True)),
        "pong": small(protocol.PONG, 0, 6),
        "state": small(
            protocol.STATE, 0, 7, messages.encode_state(messages.State(10, 5, 1, "full"))
        ),
        "confirmed": small(protocol.CONFIRMED, 0, 8),
        "failed": small(protocol.FAILED, 0, 8, failure),
        "add_failed": small(protocol.ADD_FAILED, 0, 4, failure),
        "closing": small(protocol.CLOSING, 0, 0, failure),
    }
    bodies = {
        "one": (range(9, 10), [b"entry"]),
        "three": (range(9, 12), [b"one", b"", b"three"]),
        "holes": ((9, 11), [b"one", b"three"]),
    }
    for name, (ids, entries) in bodies.items():
        group = pack(entries)
        head = protocol.encode_add(4, 7, 8, ids, group, recovery=name == "holes")
        result[f"add_{name}"] = head + b"".join(group.body)
        result[f"entries_{name}"] = b"".join(protocol.encode_entries(0, 1, ids, entries))
    return result


def test_frames_match_the_golden_files() -> None:
    golden = dict(line.split() for line in GOLDEN.read_text().splitlines())
    assert {name: frame.hex() for name, frame in frames().items()} == golden
    kinds = {bytes.fromhex(frame)[4] for frame in golden.values()}
    assert kinds == set(KINDS)
