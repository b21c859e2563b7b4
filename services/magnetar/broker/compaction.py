"""The broker's part in compaction: it serves what jobs have made, and keeps what they need.

A topic on which compaction is on (its threshold is above 0, or it has an artefact) is not trimmed
beyond the horizon: what was not compacted yet is never let go by retention. Pulsar has a durable
cursor for that, `__compaction`; here it is one question to metadata before a ledger goes.
"""

from magnetar.broker.dispatch.compacted import CompactedLog
from magnetar.broker.offloading import topic_of
from magnetar.broker.policies.applied import BrokerPolicies
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.compaction.artefact import Artefacts
from magnetar.core.clock import Clock
from magnetar.core.ids import EARLIEST, Position
from magnetar.metadata.store import MetadataStore
from magnetar.offload.cold_files import ColdFiles
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD


class Compaction:
    """See the module's text. One per broker."""

    def __init__(
        self, store: MetadataStore, files: ColdFiles, policies: BrokerPolicies, clock: Clock
    ) -> None:
        self.artefacts = Artefacts(store, files)
        self._policies = policies
        self._clock = clock

    async def log_of(self, topic: PersistentTopic) -> CompactedLog:
        """The topic as a consumer with `read_compacted` sees it; raises MetadataError."""
        return await CompactedLog.open(topic.managed_ledger, self.artefacts, self._clock)

    async def trim_limit(self, name: str, log_created_ms: int) -> Position | None:
        """Up to where the log may be trimmed; None: compaction is off. Raises MetadataError."""
        artefact = await self.artefacts.live(name, log_created_ms)
        if artefact is not None:
            return artefact.horizon
        return EARLIEST if self._policies.value(topic_of(name), COMPACTION_THRESHOLD) else None
