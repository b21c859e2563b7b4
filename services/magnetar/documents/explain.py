"""The answers of `GET …/explain`: why messages are not delivered, or not published.

Fields are only ever added within a `version`. The findings are in order: the first one is the
reason, the others contribute or help to find it. Times are texts in UTC, such as
`2026-01-31T12:00:00.000Z`; sizes are in bytes.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

VERSION: Final = 1
TIME_MS_MAX: Final = 253_402_300_799_000
"""The end of the year 9999, beyond which no date is formatted."""

Evidence = dict[str, object]
"""Texts, numbers, and lists of such or of objects of such."""


class NextStep(msgspec.Struct, omit_defaults=True):
    """What to do about a finding. `method` and `path` are the request that `command` sends."""

    text: str
    command: str = ""
    """The command to run; empty if none helps."""
    method: str = ""
    path: str = ""
    body: object = None
    """The JSON body of the request; None: no body."""


class Finding(msgspec.Struct, omit_defaults=True):
    """One reason with its evidence. `code` is stable: tools may match it."""

    code: str
    summary: str
    evidence: Evidence
    next_step: NextStep
    since: str | None = None
    """When the state began; absent if that is not known."""
    partition: str = ""
    """The partition that the finding is about, in the answer for a partitioned topic."""


class LedgerUse(msgspec.Struct):
    """The bytes of one ledger on bookies, and why they are kept."""

    ledger_id: int
    reason: str
    bytes: int
    """The bytes of all copies."""
    copies: int
    detail: str = ""


class DiskUse(msgspec.Struct):
    """The bytes that a topic takes on bookies, by reason."""

    bytes: int
    """The sum over `by_reason`, and over all ledgers."""
    by_reason: dict[str, int]
    ledgers: list[LedgerUse]
    exact: bool = True
    """False if the length or the copies of a ledger could not be read."""
    ledgers_left_off: int = 0
    """Smaller ledgers that the list does not show."""


class Explanation(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The answer about a topic, a subscription or one of its messages."""

    version: int
    kind: str
    """`topic`, `subscription` or `message`."""
    topic: str
    subscription: str = ""
    message_id: str = ""
    broker: str = ""
    at: str
    findings: list[Finding]
    disk: DiskUse | None = None
    partitions: "dict[str, Explanation]" = {}


def utc(time_ms: int) -> str:
    """Formats a time in ms since 1970. Times that clients choose may be beyond TIME_MS_MAX."""
    moment = datetime.fromtimestamp(min(max(time_ms, 0), TIME_MS_MAX) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def of_partitions(whole: Explanation, parts: Sequence[Explanation]) -> Explanation:
    """Returns the answer for a partitioned topic: each partition's first finding, and all answers.

    Partitions where something is wrong come first.
    """
    whole.partitions = {part.topic: part for part in parts}
    firsts = [
        msgspec.structs.replace(part.findings[0], partition=part.topic)
        for part in parts
        if part.findings
    ]
    whole.findings = sorted(firsts, key=lambda finding: finding.code in FINE)
    disks = [part.disk for part in parts if part.disk is not None]
    if disks:
        by_reason: dict[str, int] = {}
        for disk in disks:
            for reason, size in disk.by_reason.items():
                by_reason[reason] = by_reason.get(reason, 0) + size
        whole.disk = DiskUse(
            sum(disk.bytes for disk in disks), by_reason, [], all(disk.exact for disk in disks)
        )
    return whole


FINE: Final = frozenset({"caught_up", "flowing", "publishing"})
"""The codes that say that nothing is wrong."""
