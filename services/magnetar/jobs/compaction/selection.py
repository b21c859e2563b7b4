"""Selects the topics that a run compacts, by flags, requests and the threshold policy.

A topic named by a flag is compacted. Among topics selected otherwise (`--namespace`, `--tenant`,
`--all`), those are compacted that have a request of `pulsar-admin topics compact`, or more bytes
after the horizon than `compactionThreshold`. A topic without new entries is never compacted.

Artifacts go to the store of `--store`, by default to that of the topic's offload policies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magnetar.compaction.records import CompactionRequest, decode_request, job_key, request_key
from magnetar.metadata.store import MetadataStore
from magnetar.offload.repository import OffloadRepository
from magnetar.offload.stores import StoreSpec
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The policies and the request of a topic. A threshold of 0 means: only on request."""

    store: StoreSpec | None
    threshold_bytes: int
    requested: CompactionRequest | None
    """An unfinished request that no running job works on."""
    revision: int
    """The revision of the request's record, finished or not; 0 without one."""
    in_progress: bool = False
    """Whether a running job works on the request."""


async def topic_settings(store: MetadataStore, name: str) -> TopicSettings:
    """The settings of one managed ledger. Raises MetadataError for unreadable records."""
    repository = OffloadRepository(store)
    policies = await repository.policies(name)
    plan = policies.plan(await repository.defaults())
    requested, revision, in_progress = await _request(store, name)
    threshold = threshold_of(policies.namespace, policies.topic)
    return TopicSettings(plan.store, threshold, requested, revision, in_progress)


def threshold_of(namespace: Mapping[str, Any], topic: Mapping[str, Any]) -> int:
    """The compaction threshold, topic over namespace; 0 if unset. Pure."""
    name = COMPACTION_THRESHOLD.name
    for value in (
        (topic.get("local") or {}).get(name),
        (topic.get("global") or {}).get(name),
        namespace.get(COMPACTION_THRESHOLD.document or name),
    ):
        if value is not None:
            return max(0, int(value))
    return 0


async def _request(store: MetadataStore, name: str) -> tuple[CompactionRequest | None, int, bool]:
    key = request_key(name)
    stored = await store.get(key)
    if stored is None:
        return None, 0, False
    request = decode_request(key, stored.value)
    if request.finished:
        return None, stored.revision, False
    if request.job and await store.get(job_key(request.job)) is not None:
        return None, stored.revision, True
    return request, stored.revision, False
