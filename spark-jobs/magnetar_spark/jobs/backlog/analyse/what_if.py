"""Computes what hypothetical limits of retention and TTL would free. Pure, except for `Ages`.

The steps are the broker's: entries older than the TTL are acknowledged for all subscriptions, then
closed ledgers are deleted that all subscriptions have consumed and retention does not keep. Only
whole ledgers are deleted, and never the open one, so a limit that covers no ledger frees nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.core.errors import PreconditionFailed
from magnetar.core.ids import Position
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.settings import Retention
from magnetar.managed_ledger.trim_plan import trimmable
from magnetar_spark.jobs.backlog.gather.policies import Keeping, parse_retention, parse_time_ms

NOW: Final = "now"
SCENARIOS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Scenario:
    """Limits in place of the effective ones; None leaves a limit unchanged."""

    name: str
    retention: Retention | None = None
    ttl_s: int | None = None

    def on(self, keeping: Keeping) -> Keeping:
        """The limits of the scenario."""
        return Keeping(
            keeping.retention if self.retention is None else self.retention,
            keeping.ttl_s if self.ttl_s is None else self.ttl_s,
            keeping.compaction_bytes,
        )


class Ages(Protocol):
    """The ages of a topic's entries."""

    async def older_end(self, before_ms: int) -> Position | None:
        """The last entry of the log's part that is older than this time; None if nothing is."""


@dataclass(frozen=True, slots=True)
class Freed:
    """The effect of a scenario: unread entries lost by subscription, and ledgers deleted."""

    scenario: str
    expired: Mapping[str, int]
    ledgers: int
    entries: int
    size_bytes: int


def parse_scenarios(given: Sequence[str]) -> list[Scenario]:
    """Parses `--what-if ttl=2h,retention=1d`. The first scenario is always that of now."""
    if len(given) > SCENARIOS_MAX:
        raise PreconditionFailed(f"--what-if is given {len(given)} times; {SCENARIOS_MAX} at most")
    return [Scenario(NOW), *(_parsed(text) for text in given)]


def _parsed(text: str) -> Scenario:
    retention: Retention | None = None
    ttl_s: int | None = None
    for part in text.split(","):
        name, separator, value = part.strip().partition("=")
        if separator and name == "retention":
            retention = parse_retention(value)
        elif separator and name == "ttl":
            ttl_s = max(0, -(-parse_time_ms(value) // 1000))
        else:
            raise PreconditionFailed(f"--what-if '{text}': write ttl=TIME or retention=TIME/SIZE")
    return Scenario(text, retention, ttl_s)


async def freed(
    scenario: Scenario,
    index: LedgerIndex,
    acks: Mapping[str, AckState | None],
    keeping: Keeping,
    ages: Ages,
    now_ms: int,
    trim_limit: Position | None = None,
) -> Freed:
    """The effect of a scenario on one topic.

    An unreadable cursor keeps all ledgers, and compaction keeps those after `trim_limit`.
    """
    wanted = scenario.on(keeping)
    readable = {name: state for name, state in acks.items() if state is not None}
    marks = {name: state.mark_delete for name, state in readable.items()}
    expired: dict[str, int] = {}
    if wanted.ttl_s and readable:
        end = await ages.older_end(now_ms - wanted.ttl_s * 1000)
        for name, state in readable.items():
            if end is not None and end > state.mark_delete:
                expired[name] = state.unacked_up_to(end)
                marks[name] = state.mark_delete_after(end)
    if len(readable) < len(acks):
        return Freed(scenario.name, expired, 0, 0, 0)
    rank = min((index.rank(*mark) for mark in marks.values()), default=index.rank_end)
    if trim_limit is not None:
        rank = min(rank, index.rank(*trim_limit))
    gone = trimmable(index, rank, wanted.retention, now_ms)
    return Freed(
        scenario.name,
        expired,
        len(gone),
        sum(info.entries for info in gone),
        sum(info.size_bytes for info in gone),
    )
