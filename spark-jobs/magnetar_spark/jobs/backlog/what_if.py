"""What other limits would free: retention and TTL that are not set. Pure but for `Ages`.

The steps are the broker's: what is older than the TTL is acknowledged for everybody, then the
closed ledgers go that everybody has consumed and retention does not keep. Ledgers go whole, and the
one that is written to stays, so a limit frees nothing before it covers a ledger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.core.errors import PreconditionFailed
from magnetar.core.ids import Position
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.index import LedgerIndex
from magnetar.managed_ledger.settings import Retention
from magnetar.managed_ledger.trimming import trimmable
from magnetar_spark.jobs.backlog.policies import Keeping, parse_retention, parse_time_ms

NOW: Final = "now"
SCENARIOS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Scenario:
    """Limits instead of those that hold; None: as they are."""

    name: str
    retention: Retention | None = None
    ttl_s: int | None = None

    def on(self, keeping: Keeping) -> Keeping:
        """What would hold."""
        return Keeping(
            keeping.retention if self.retention is None else self.retention,
            keeping.ttl_s if self.ttl_s is None else self.ttl_s,
            keeping.compaction_bytes,
        )


class Ages(Protocol):
    """How old entries are."""

    async def older_end(self, before_ms: int) -> Position | None:
        """The last entry up to which all came before this time; None where there is none."""


@dataclass(frozen=True, slots=True)
class Freed:
    """What would go: entries that nobody has read, by subscription, and ledgers with all copies."""

    scenario: str
    expired: Mapping[str, int]
    ledgers: int
    entries: int
    size_bytes: int


def parse_scenarios(given: Sequence[str]) -> list[Scenario]:
    """`--what-if ttl=2h,retention=1d`; the first is always what holds now."""
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
    """What the scenario lets go of one topic. A cursor that cannot be read keeps everything, and
    so does compaction behind `trim_limit`."""
    wanted = scenario.on(keeping)
    known = {name: each for name, each in acks.items() if each is not None}
    marks = {name: each.mark_delete for name, each in known.items()}
    expired: dict[str, int] = {}
    if wanted.ttl_s and known:
        end = await ages.older_end(now_ms - wanted.ttl_s * 1000)
        for name, each in known.items():
            if end is not None and end > each.mark_delete:
                expired[name] = each.unacked_up_to(end)
                marks[name] = each.mark_delete_after(end)
    if len(known) < len(acks):
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
