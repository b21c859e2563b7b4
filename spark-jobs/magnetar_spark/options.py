"""Parses the options of a read; every error names the option and says what to write.

Names are those of StreamNative's connector if it has the option; `metadata.*` and
`partition.bytes` are ours. As everywhere in Spark, names are case-insensitive. Options that only
apply to a client of brokers (`pollTimeoutMs`, `pulsar.client.*`, `subscriptionPrefix`, …) are
accepted and ignored, so that jobs written for that connector run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.core.errors import PreconditionFailed
from magnetar.jobs.log.ranges import PARTITION_BYTES_DEFAULT
from magnetar.metadata.store_url import ROOT_DEFAULT
from magnetar_spark.log.settings import LogSettings
from magnetar_spark.offsets import Start, parse_end, parse_start

PARTITION_BYTES_MIN: Final = 1 << 10
_TOPIC_OPTIONS: Final = ("topic", "topics", "topicsPattern")
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options. Exactly one of `topics` and `pattern` is set."""

    log: LogSettings
    topics: tuple[str, ...]
    pattern: str | None
    starting: Start | None
    ending: Start | None
    partition_bytes: int
    bytes_per_trigger: int | None
    fail_on_data_loss: bool
    raw_values: bool
    filter_pushdown: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ReadOptions":
        """Parses options. Raises PreconditionFailed naming the option."""
        given = {name.lower(): value for name, value in options.items()}
        chosen = [name for name in _TOPIC_OPTIONS if given.get(name.lower())]
        if len(chosen) != 1:
            raise PreconditionFailed(
                f"set exactly one of the options topic, topics and topicsPattern, not {chosen}"
            )
        names = given.get("topic") or given.get("topics") or ""
        topics = tuple(name.strip() for name in names.split(",")) if names else ()
        if "topic" in chosen:
            topics = (names.strip(),)
        if not all(topics):
            raise PreconditionFailed(f"{chosen[0]} '{names}' has an empty name in it")
        return cls(
            log=_log_settings(given),
            topics=topics,
            pattern=given.get("topicspattern"),
            starting=parse_start(given),
            ending=parse_end(given),
            partition_bytes=_number(
                given, "partition.bytes", PARTITION_BYTES_DEFAULT, PARTITION_BYTES_MIN
            ),
            bytes_per_trigger=_number(given, "maxBytesPerTrigger", 0, 0) or None,
            fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
            raw_values=_boolean(given, "allowDifferentTopicSchemas", default=False),
            filter_pushdown=_boolean(given, "filterPushdown", default=False),
        )


def _log_settings(given: Mapping[str, str]) -> LogSettings:
    url = given.get("metadata.url", "")
    if not url:
        raise PreconditionFailed(
            "metadata.url is not set: Spark finds the bookies in the metadata store "
            "(etcd:http://HOST:2379, the metadata_url of brokers and bookies)"
        )
    password = given.get("metadata.password", "")
    path = given.get("metadata.password.file", "")
    if path:
        try:
            password = Path(path).read_text().partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PreconditionFailed(f"metadata.password.file {path}: {error}") from error
    return LogSettings(
        metadata_url=url,
        metadata_root=given.get("metadata.root", ROOT_DEFAULT),
        admin_url=given.get("admin.url", ""),
        tls_ca_file=given.get("metadata.tls.ca.file", ""),
        tls_cert_file=given.get("metadata.tls.cert.file", ""),
        tls_key_file=given.get("metadata.tls.key.file", ""),
        username=given.get("metadata.username", ""),
        password=password,
        bookkeeper_tls=_boolean(given, "bookkeeper.tls", default=False),
        trust_file=given.get("tls.trust.file", ""),
        cert_file=given.get("tls.cert.file", ""),
        key_file=given.get("tls.key.file", ""),
        token_file=given.get("token.file", ""),
    )


def _number(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    if not text.strip().isdigit() or int(text) < least:
        raise PreconditionFailed(f"{name} '{text}': write a number of bytes, {least} or more")
    return int(text)


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise PreconditionFailed(f"{name} '{text}': write true or false")
    return value
