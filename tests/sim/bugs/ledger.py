"""Planted bugs of the ledger protocol: fencing, recovery, quorums, ensemble change, copies."""

from collections.abc import Mapping
from typing import Any, Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import bookies, faults, ledgers, quorum, tells, together

from magnetar.autorecovery.copier import Copier, CopyResult, CopyTask
from magnetar.bookie.api import (
    BookieError,
    BookieIdentity,
    BookieUnavailable,
    EntryUnknown,
    LedgerEnd,
    NoSuchEntry,
)
from magnetar.bookie.net.client import RemoteBookie
from magnetar.ledger import recovery
from magnetar.ledger.bookie_calls import ask_end, ask_entries
from magnetar.ledger.ensemble_change import EnsembleChange
from magnetar.ledger.explicit_lac import ExplicitLac
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.registered_bookies import RegisteredBookies
from magnetar.ledger.replicas import Replica
from magnetar.ledger.replicated_writer import ReplicatedWriter
from magnetar.ledger.writer import LedgerWriter


def recovery_reads_do_not_fence() -> None:
    read = RemoteBookie.read_entries

    async def unfenced(self: RemoteBookie, *args: int, bytes_max: int, fence: bool = False) -> Any:
        return await read(self, *args, bytes_max=bytes_max)

    plant(RemoteBookie, "read_entries", unfenced)


def tells_what_was_sent() -> None:
    tell = ExplicitLac._tell

    async def too_much(self: ExplicitLac, due: Any) -> None:
        await tell(self, [(writer, writer.next_entry - 1, seen) for writer, _, seen in due])

    plant(ExplicitLac, "_tell", too_much)
    plant(LedgerWriter, "at_rest", property(lambda self: self.error is None))


def as_few_as_it_takes() -> None:
    """Asks no more bookies to fence than the protocol demands: that alone is no bug."""
    fence, left_out = recovery._Recovery._fence, dict[int, BookieIdentity]()

    async def fewer(self: Any) -> int:
        bookies, ledger_id = self._fragment.bookies, self._metadata.ledger_id
        if len(bookies) > self._metadata.ack_quorum:
            left_out[ledger_id] = bookies[ledger_id % len(bookies)]
        return await fence(self)

    async def asked(
        context: Any, ledger_id: int, identity: BookieIdentity, *, fence: bool
    ) -> LedgerEnd | BookieError:
        if left_out.get(ledger_id) == identity:
            return BookieUnavailable("not asked")
        return await ask_end(context, ledger_id, identity, fence=fence)

    plant(recovery._Recovery, "_fence", fewer)
    plant(recovery, "ask_end", asked)


def recovery_reads_of_some_do_not_fence() -> None:
    as_few_as_it_takes()
    recovery_reads_do_not_fence()


def one_bookie_is_asked() -> None:
    asked: dict[int, BookieIdentity] = {}

    async def only_one(
        context: Any, ledger_id: int, identity: BookieIdentity, *, fence: bool
    ) -> LedgerEnd | BookieError:
        if asked.setdefault(ledger_id, identity) != identity:
            return BookieUnavailable("not asked")
        return await ask_end(context, ledger_id, identity, fence=fence)

    plant(recovery, "ask_end", only_one)
    plant(recovery, "fence_covers", lambda *all_and_fenced: bool(all_and_fenced[-1]))
    recovery_reads_do_not_fence()


def recovery_does_not_fence() -> None:
    ask = ask_end

    async def unfenced(
        context: Any, ledger_id: int, identity: BookieIdentity, *, fence: bool
    ) -> LedgerEnd | BookieError:
        answer = await ask(context, ledger_id, identity, fence=False)
        if isinstance(answer, LedgerEnd):
            return LedgerEnd(answer.last_add_confirmed, answer.last_entry, fenced=True)
        return answer

    plant(recovery, "ask_end", unfenced)
    recovery_reads_do_not_fence()


def one_absence_is_enough() -> None:
    plant(recovery, "absence_needs", lambda *_: 1)


def closes_at_confirmed() -> None:
    async def nothing(self: Any, first: int) -> None:
        return None

    plant(recovery._Recovery, "_find", nothing)


def unknown_is_absence() -> None:
    ask = ask_entries

    async def certain(*args: Any) -> Any:
        answer = await ask(*args)
        return NoSuchEntry(str(answer)) if isinstance(answer, EntryUnknown) else answer

    plant(recovery, "ask_entries", certain)


def silence_is_absence() -> None:
    ask = ask_entries

    async def certain(*args: Any) -> Any:
        answer = await ask(*args)
        return NoSuchEntry(str(answer)) if isinstance(answer, BookieError) else answer

    plant(recovery, "ask_entries", certain)


def incarnation_is_ignored() -> None:
    get = RegisteredBookies.get

    def by_name(self: RegisteredBookies, identity: BookieIdentity) -> Any:
        for living in self._at.values():
            if living.bookie_id == identity.bookie_id:
                return get(self, living)
        return get(self, identity)

    plant(RegisteredBookies, "get", by_name)


def confirms_before_the_swap() -> None:
    def want(self: ReplicatedWriter, entry_id: int, want: int) -> int:
        return want

    plant(ReplicatedWriter, "need_of", want)


def records_before_the_copy() -> None:
    async def at_once(self: EnsembleChange) -> bool:
        return True

    plant(EnsembleChange, "_copied", at_once)


def a_bookie_counts_twice() -> None:
    acked = Replica.on_added

    def twice(self: Replica, error: BookieError | None) -> None:
        if error is None and self.error is None and self.inflight:
            piece = self.inflight[0]
            others = piece.want & ~self.bit
            piece.acked |= others & -others
        acked(self, error)

    plant(Replica, "on_added", twice)


def autorecovery_does_not_copy() -> None:
    async def nothing(
        self: Copier,
        ledger_id: int,
        needs: Mapping[int, CopyTask],
        confirmed: int,
        done: CopyResult,
    ) -> None:
        done.entries += len(needs)

    plant(Copier, "copy", nothing)


ROUGH: Final = faults(
    "pause bookie", "slow network", "cut one way", "isolate", "kill bookie", count=10
)


def recovered_entries_are_not_written_back() -> None:
    async def found(
        self: recovery._Recovery, metadata: LedgerMetadata, *_: object
    ) -> LedgerMetadata:
        return metadata

    plant(recovery._Recovery, "_store", found)


BUGS: Final = (
    Bug(
        "a recovery does not write back",
        "A recovery ends the ledger behind an entry that it found on one bookie alone.",
        recovered_entries_are_not_written_back,
        0,
        together(ledgers(), quorum(3, 3, 2), faults("late copy", "stalls", count=10)),
    ),
    Bug(
        "recovery reads do not fence",
        "A bookie that recovery asks for an entry answers that it has none, and takes it from the "
        "old writer a moment later: it is confirmed behind the end (BookKeeper #2614).",
        recovery_reads_of_some_do_not_fence,
        31,
        together(ledgers(), quorum(3, 3, 2), bookies(3), faults("late copy", count=12)),
    ),
    Bug(
        "recovery does not fence",
        "The ledger is ended while its writer goes on: what it is told is confirmed is lost.",
        recovery_does_not_fence,
        1,
        ledgers(),
    ),
    Bug(
        "last-add-confirmed from one bookie",
        "Recovery goes on once one bookie has answered: the rest may still confirm entries to the "
        "writer (BookKeeper #2303).",
        one_bookie_is_asked,
        2,
        together(ledgers(), quorum(3, 3, 2)),
    ),
    Bug(
        "one absence is enough",
        "An entry that one of its bookies does not have is taken for one that was never confirmed.",
        one_absence_is_enough,
        12,
        together(ledgers(), quorum(3, 3, 2), ROUGH),
    ),
    Bug(
        "close at last-add-confirmed",
        "Recovery ends the ledger at what bookies know to be confirmed, and does not read on: what "
        "was confirmed to the writer, but not told to the bookies yet, is lost.",
        closes_at_confirmed,
        0,
    ),
    Bug(
        "unknown is no such entry",
        "A bookie whose journal is damaged cannot know what it had; taken for a no, its answer "
        "ends ledgers early.",
        unknown_is_absence,
        581,
        together(ledgers(), quorum(2, 2, 2), faults("flip journal", "kill broker", count=9)),
    ),
    Bug(
        "silence is no such entry",
        "A bookie that cannot be reached is counted as one that does not have the entry "
        "(BookKeeper #1067).",
        silence_is_absence,
        30,
        together(ledgers(), ROUGH),
    ),
    Bug(
        "an empty bookie under an old id is believed",
        "A bookie comes back with an empty disk and answers for what its former disk had: recovery "
        "ends ledgers early on its word.",
        incarnation_is_ignored,
        42,
        faults("wipe bookie", "kill broker", "kill bookie", count=8),
    ),
    Bug(
        "confirm before the ensemble change is recorded",
        "Entries are confirmed by bookies of which the ledger's record does not know yet: who "
        "recovers the ledger asks the old ones.",
        confirms_before_the_swap,
        72,
        together(
            ledgers(),
            faults(
                "kill bookie",
                "slow disk",
                "metadata loses answers",
                "cut off metadata",
                "pause bookie",
                count=10,
            ),
        ),
    ),
    Bug(
        "ensemble change recorded before the copy",
        "The record names bookies that do not have the entries yet: who recovers the ledger asks "
        "them, and ends it early.",
        records_before_the_copy,
        12,
        together(
            ledgers(),
            quorum(3, 3, 1),
            bookies(5),
            faults("stalls", "kill bookie", "pause bookie", count=12, for_s=4.0),
        ),
    ),
    Bug(
        "explicit LAC of what was sent",
        "A writer that waits tells its bookies of entries that are on their way as if they were "
        "confirmed: others read them, and the ledger may end before them.",
        tells_what_was_sent,
        10,
        together(ledgers(), tells(), ROUGH),
    ),
    Bug(
        "a bookie counts twice",
        "One bookie's answer is counted for another as well: receipts go out with one copy.",
        a_bookie_counts_twice,
        21,
        together(ledgers(), ROUGH),
    ),
    Bug(
        "autorecovery changes the record before the copy is there",
        "A lost bookie is replaced in the record by one that has nothing.",
        autorecovery_does_not_copy,
        1,
        faults("wipe bookie", "kill broker", count=4),
    ),
)
