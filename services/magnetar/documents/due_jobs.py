"""Topics that wait for a job: the answer of `GET /admin/v2/magnetar/jobs`, for the operator.

A topic waits for `compact` if its broker has left its compaction to a job (`CompactionSettings`),
and for `offload` if a closed ledger is beyond a threshold, or was requested, and has no file yet.

Bounds: each broker names at most TOPICS_NAMED_MAX topics per job, and counts the others.
"""

from typing import Final

import msgspec

TOPICS_NAMED_MAX: Final = 500


class DueTopic(msgspec.Struct, rename="camel", frozen=True):
    """A topic that waits for a job, and why."""

    topic: str
    reason: str
    bytes: int = 0
    """The input of the job for this topic, as its broker knows it."""


class DueJobs(msgspec.Struct, rename="camel", frozen=True):
    """The topics of one or all brokers that wait for jobs."""

    compact: tuple[DueTopic, ...] = ()
    compact_not_named: int = 0
    offload: tuple[DueTopic, ...] = ()
    offload_not_named: int = 0

    def plus(self, other: "DueJobs") -> "DueJobs":
        """Adds the topics of other brokers."""
        return DueJobs(
            self.compact + other.compact,
            self.compact_not_named + other.compact_not_named,
            self.offload + other.offload,
            self.offload_not_named + other.offload_not_named,
        )
