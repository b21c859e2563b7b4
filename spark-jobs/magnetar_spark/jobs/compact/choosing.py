"""Which topics a run compacts, and where to: flags, requests, and the threshold policy.

A topic that is named is compacted. Of others (`--namespace`, `--tenant`, `--all`) those that were
asked for by `pulsar-admin topics compact`, and those of which more bytes than `compactionThreshold`
lie behind the horizon. Either way nothing is done where nothing is new.

Files go where the flags say, else where the topic's offload policies do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from magnetar.compaction.records import CompactionRequest, decode_request, job_key, request_key
from magnetar.core.errors import PreconditionFailed
from magnetar.metadata.store import MetadataStore
from magnetar.offload.policy import (
    decode_defaults,
    effective,
    namespace_document,
    namespace_key,
    topic_offload,
    topic_policies_key,
)
from magnetar.offload.records import DEFAULTS_KEY
from magnetar.offload.stores import FILESYSTEM, StoreSpec
from magnetar.policies.lifecycle import COMPACTION_THRESHOLD

S3_SCHEME = "s3"
S3_DRIVER = "aws-s3"


@dataclass(frozen=True, slots=True)
class Said:
    """What policies and requests say of a topic. A threshold of 0: only when asked."""

    store: StoreSpec | None
    threshold_bytes: int
    requested: CompactionRequest | None
    """One that no living job works on, and that is not done."""
    revision: int
    """Of the request's record; 0 where there is none."""


def parse_store(text: str, *, endpoint: str = "", region: str = "") -> StoreSpec:
    """`s3://BUCKET/PREFIX`, `file:///FOLDER` or a folder; raises PreconditionFailed."""
    parts = urlsplit(text)
    if parts.scheme == S3_SCHEME and parts.netloc:
        return StoreSpec(S3_DRIVER, parts.netloc, region, endpoint, parts.path.strip("/"))
    folder = unquote(parts.path) if parts.scheme == "file" else text
    if (parts.scheme == "file" or "://" not in text) and PurePosixPath(folder).is_absolute():
        return StoreSpec(FILESYSTEM, folder)
    raise PreconditionFailed(f"--store {text!r}: write s3://BUCKET/PREFIX or file:///FOLDER")


async def said_of(store: MetadataStore, name: str) -> Said:
    """Of one managed ledger; raises MetadataError where a record cannot be understood."""
    key = namespace_key(name)
    namespace = namespace_document(key, await _value(store, key))
    key = topic_policies_key(name)
    own = await _value(store, key)
    defaults = decode_defaults(DEFAULTS_KEY, await _value(store, DEFAULTS_KEY))
    plan = effective(defaults, namespace, topic_offload(key, own))
    topic = namespace_document(key, own)
    requested, revision = await _request(store, name)
    return Said(plan.store, threshold_of(namespace, topic), requested, revision)


def threshold_of(namespace: Mapping[str, Any], topic: Mapping[str, Any]) -> int:
    """Topic over namespace; 0 where none is set."""
    name = COMPACTION_THRESHOLD.name
    for value in (
        (topic.get("local") or {}).get(name),
        (topic.get("global") or {}).get(name),
        namespace.get(COMPACTION_THRESHOLD.document or name),
    ):
        if value is not None:
            return max(0, int(value))
    return 0


async def _value(store: MetadataStore, key: str) -> bytes | None:
    found = await store.get(key)
    return None if found is None else found.value


async def _request(store: MetadataStore, name: str) -> tuple[CompactionRequest | None, int]:
    key = request_key(name)
    stored = await store.get(key)
    if stored is None:
        return None, 0
    request = decode_request(key, stored.value)
    if request.finished or (request.job and await store.get(job_key(request.job)) is not None):
        return None, stored.revision
    return request, stored.revision
