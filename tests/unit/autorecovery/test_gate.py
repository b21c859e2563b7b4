"""The health that gates removals: every reason against one, and the details."""

import msgspec
from tests.unit.autorecovery.stage import Stage, run

from magnetar.autorecovery.audit.health_summary import LEDGERS_NAMED_MAX, ledger_health
from magnetar.autorecovery.members import Members
from magnetar.autorecovery.records import (
    AUDIT_STATE_KEY,
    AUDITOR_KEY,
    AuditState,
    RecordState,
    UnderReplicated,
    record_key,
)
from magnetar.bookie.api import BookieIdentity
from magnetar.bookie.registration import BookieRegistration, known_key
from magnetar.metadata.records import encode
from magnetar.metadata.records import encode as encode_registration


async def listed(stage: Stage, record: UnderReplicated) -> None:
    await stage.store.put(record_key(record.ledger_id), encode(record))


def test_the_gate_is_open_only_if_the_audit_saw_the_current_bookies() -> None:
    async def main() -> None:
        stage = Stage("a", "b")
        living = {info.identity: info for info in stage.bookies.living()}

        async def reason() -> str:
            health = await ledger_health(stage.store, stage.bookies)
            assert health.healthy is not bool(health.reason)
            return health.reason

        assert (await reason()).startswith("no process runs autorecovery")
        await stage.store.put(AUDITOR_KEY, b"x")
        assert (await reason()).startswith("the set of bookies has changed")
        state = AuditState(Members(living).digest, 7)
        await stage.store.put(AUDIT_STATE_KEY, msgspec.json.encode(state))
        assert await reason() == ""
        await listed(stage, UnderReplicated(1, ("gone", "late"), 0))
        await listed(stage, UnderReplicated(2, ("gone",), 0, RecordState.PARKED, detail="full"))
        assert await reason() == "2 ledgers lack copies; autorecovery replicates them"
        health = await ledger_health(stage.store, stage.bookies)
        assert [(ledger.ledger_id, ledger.state, ledger.why) for ledger in health.ledgers] == [
            (1, "waiting", "gone; late"),
            (2, "parked", "full"),
        ]
        assert (health.under_replicated, health.lost, health.audited_ms) == (2, 0, 7)
        await listed(stage, UnderReplicated(3, ("gone",), 0, RecordState.LOST))
        assert await reason() == "1 ledgers have lost entries"
        assert (await ledger_health(stage.store, stage.bookies)).under_replicated == 2
        stage.bookies.drain(stage.by_name["a"])
        stage.by_name["b"].full = True
        health = await ledger_health(stage.store, stage.bookies)
        assert not health.audit_is_current
        assert [
            (bookie.bookie_id, bookie.draining, bookie.writable) for bookie in health.bookies
        ] == [
            ("a", True, True),
            ("b", False, False),
        ]
        await stage.stop()

    run(main)


def test_health_counts_all_ledgers_names_some_and_shows_disks() -> None:
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
        health = await ledger_health(stage.store, stage.bookies)
        assert len(health.ledgers) == LEDGERS_NAMED_MAX
        assert health.under_replicated == LEDGERS_NAMED_MAX + 1
        assert health.reason == "101 ledgers lack copies; autorecovery replicates them"
        assert health.unreadable == 2, "one of them was deleted since"
        first, second = health.bookies
        assert (first.incarnations_before, first.disk_bytes_total, first.disk_bytes_free) == (
            2,
            9,
            4,
        )
        assert (second.incarnations_before, second.disk_bytes_total) == (0, 0)
        await stage.stop()

    run(main)
