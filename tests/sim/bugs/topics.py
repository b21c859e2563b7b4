"""Planted bugs of topics: failed appends, keys that move, cursors that fail, quotas."""

from typing import Any, Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import (
    bookies,
    churn,
    faults,
    hazards,
    key_shared,
    letters,
    many_rollovers,
    together,
    topics,
    transactions,
)

from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.waiting_lines import WaitingLines
from magnetar.broker.lifecycle.upkeep import Upkeep
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.steady_clock import SteadyClock
from magnetar.managed_ledger import trim_plan as trimming
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.managed_ledger import ManagedLedger


def failed_appends_close_nobody() -> None:
    def stays(self: PersistentTopic, error: Any) -> None:
        self.counters.publish_errors += 1

    plant(PersistentTopic, "publish_failed", stays)


def keys_do_not_drain() -> None:
    plant(KeySharedDispatcher, "_joined", KeySharedDispatcher._line_up_all)


def what_comes_back_goes_behind() -> None:
    park = WaitingLines.park

    def behind(self: WaitingLines, position: Any, sticky_hash: int) -> bool:
        line = self.by_hash.get(sticky_hash)
        if line is None:
            return park(self, position, sticky_hash)
        self._count += 1
        line.append(position)
        return False

    plant(WaitingLines, "park", behind)


def ledgers_are_trimmed_an_entry_early() -> None:
    consumed = trimming.consumed
    plant(trimming, "consumed", lambda index, rank: consumed(index, rank + 1))


def an_unreadable_cursor_holds_nothing_back() -> None:
    consumed = ManagedLedger._consumed_rank

    def without(self: ManagedLedger) -> int:
        broken, self._cursors.broken = self._cursors.broken, {}
        try:
            return consumed(self)
        finally:
            self._cursors.broken = broken

    plant(ManagedLedger, "_consumed_rank", without)


def a_failed_cursor_write_is_done() -> None:
    def written(self: Cursor, error: Any) -> None:
        self._finish(None)

    plant(Cursor, "_written", written)


def unreadable_cursors_are_not_read_again() -> None:
    async def nothing(_self: Upkeep) -> None:
        """Only a consumer that subscribes has its cursor read again."""

    plant(Upkeep, "restore_subscriptions", nothing)


def ages_go_by_the_wall_clock() -> None:
    plant(SteadyClock, "_counted_ms", lambda self: self._clock.now_ms())


KEYED: Final = together(topics(), key_shared())

BUGS: Final = (
    Bug(
        "a failed append disconnects no producer",
        "Producers go on after a failed append: a later message gets in before the one that is "
        "sent again.",
        failed_appends_close_nobody,
        27,
        together(
            topics(),
            hazards(error_s_max=1.0),
            faults("most bookies down", "cut off bookies", count=6, for_s=3.0),
        ),
    ),
    Bug(
        "a key moves before it has drained",
        "A consumer joins and gets a key at once, while another one has entries of it unacked.",
        keys_do_not_drain,
        1,
        together(KEYED, faults("unload topic", "resets", count=6)),
    ),
    Bug(
        "entries that come back go behind",
        "A consumer leaves; its entries of a key go behind later ones of that key that wait.",
        what_comes_back_goes_behind,
        64,
        together(KEYED, faults("unload topic", "resets", count=6)),
    ),
    Bug(
        "a ledger is trimmed an entry early",
        "A ledger goes while its last entry is unacked.",
        ledgers_are_trimmed_an_entry_early,
        10,
        together(topics(), many_rollovers(), churn(hoard_chance=0.2), faults("resets", count=4)),
    ),
    Bug(
        "an unreadable cursor holds nothing back",
        "The bookies of a cursor's ledger are away while the topic is opened: what only that "
        "cursor needs is trimmed.",
        an_unreadable_cursor_holds_nothing_back,
        2,
        together(
            topics(),
            many_rollovers(),
            churn(cursor_bytes=200),
            faults("cursors unreadable", count=6, for_s=3.0),
        ),
    ),
    Bug(
        "a failed write of a cursor is receipted",
        "An ack is receipted though no ack quorum has stored the cursor's entry.",
        a_failed_cursor_write_is_done,
        21,
        together(
            topics(),
            bookies(4),
            faults("most bookies down", "kill broker", "cut off bookies", count=8),
        ),
    ),
    Bug(
        "unreadable cursors are not read again",
        "The bookies of a cursor's ledger are away while the topic is opened, and no consumer "
        "subscribes when they are back: the cursor holds back all data.",
        unreadable_cursors_are_not_read_again,
        34,
        together(
            topics(),
            transactions(),
            letters(),
            faults("cursors unreadable", "unload topic", "kill broker", count=10, for_s=3.0),
        ),
    ),
    Bug(
        "quotas go by the wall clock",
        "All wall clocks leap ahead by hours: a backlog that is seconds old is evicted.",
        ages_go_by_the_wall_clock,
        3,
        together(
            topics(),
            hazards(quota_s=3_600),
            faults("leap of all clocks", count=3, for_s=6.0),
        ),
    ),
)
