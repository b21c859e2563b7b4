"""The answer that a removal is gated by: every reason for no, and what it shows."""

import msgspec
from tests.unit.autorecovery.stage import Stage, run

from magnetar.autorecovery.health_summary import LEDGERS_NAMED_MAX, ledger_health
from magnetar.autorecovery.members import Members
from magnetar.autorecovery.records import (
    AUDIT_STATE_KEY,
    AUDITOR_KEY,
    AuditState,
    RecordState,
    UnderReplicated,
    encode,
    record_key,
)
from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.registration import BookieRegistration, known_key
from magnetar.bookie.registration import encode as encode_registration


async def listed(stage: Stage, record: UnderReplicated) -> None:
    await stage.store.put(record_key(record.ledger_id), encode(record))


def test_the_gate_is_open_only_when_an_audit_has_seen_these_very_bookies() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        living = {info.identity: info for info in stage.bookies.living()}

        async def reason() -> str:
            found = await ledger_health(stage.store, stage.bookies)
            assert found.healthy is not bool(found.reason)
            return found.reason

        assert (await reason()).startswith("nobody runs autorecovery")
        await stage.store.put(AUDITOR_KEY, b"x")
        assert (await reason()).startswith("the set of bookies has changed")
        state = AuditState(Members(living).digest, 7)
        await stage.store.put(AUDIT_STATE_KEY, msgspec.json.encode(state))
        assert await reason() == ""
        await listed(stage, UnderReplicated(1, ("gone", "late"), 0))
        await listed(stage, UnderReplicated(2, ("gone",), 0, RecordState.PARKED, detail="full"))
        assert await reason() == "2 ledgers lack copies; autorecovery makes them anew"
        found = await ledger_health(stage.store, stage.bookies)
        assert [(one.ledger_id, one.state, one.why) for one in found.ledgers] == [
            (1, "waiting", "gone; late"),
            (2, "parked", "full"),
        ]
        assert (found.under_replicated, found.lost, found.audited_ms) == (2, 0, 7)
        await listed(stage, UnderReplicated(3, ("gone",), 0, RecordState.LOST))
        assert await reason() == "1 ledgers have lost entries"
        assert (await ledger_health(stage.store, stage.bookies)).under_replicated == 2
        stage.bookies.drain(stage.by_name["a"])
        stage.by_name["b"].full = True
        found = await ledger_health(stage.store, stage.bookies)
        assert not found.audit_is_current
        assert [(one.bookie_id, one.draining, one.writable) for one in found.bookies] == [
            ("a", True, True),
            ("b", False, False),
        ]
        await stage.stop()

    run(main)


def test_health_names_some_ledgers_and_counts_all_and_shows_disks() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        for ledger_id in range(LEDGERS_NAMED_MAX + 1):
            await listed(stage, UnderReplicated(ledger_id, ("gone",), 0))
        for incarnation in ("1", "2", "3"):
            await stage.store.put(known_key(BookieIdentity("a", incarnation)), b"{}")
        registered = BookieRegistration("a", "1", "h", 1, disk_bytes_total=9, disk_bytes_free=4)
        await stage.store.put("/bookies/a", encode_registration(registered))
        await stage.store.put("/bookies/b", b"of another release")
        audit = b'{"unreadable":3,"unreadable_keys":["/ledgers/x"]}'
        await stage.store.put(AUDIT_STATE_KEY, audit)
        found = await ledger_health(stage.store, stage.bookies)
        assert len(found.ledgers) == LEDGERS_NAMED_MAX
        assert found.under_replicated == LEDGERS_NAMED_MAX + 1
        assert found.reason == "101 ledgers lack copies; autorecovery makes them anew"
        assert found.unreadable == 2, "one of them was deleted since"
        first, second = found.bookies
        assert (first.incarnations_before, first.disk_bytes_total, first.disk_bytes_free) == (
            2,
            9,
            4,
        )
        assert (second.incarnations_before, second.disk_bytes_total) == (0, 0)
        await stage.stop()

    run(main)
