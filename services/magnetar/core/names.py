"""Topic and namespace names, parsed once.

Full form `{persistent|non-persistent}://tenant/namespace/topic`. Short forms, as Pulsar's clients
take them: `topic` means `persistent://public/default/topic`, `tenant/ns/topic` means
`persistent://tenant/ns/topic`. A partition is the topic `NAME-partition-N`. The local name may
hold any character, `/` included where a REST client encoded it.
Source: Pulsar's docs, concepts-messaging, "Topics".
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from magnetar.core.errors import InvalidTopicName, PreconditionFailed

PARTITION_SUFFIX: Final = "-partition-"
DOMAINS: Final = ("persistent", "non-persistent")
NAMES_CACHED_MAX: Final = 16_384

NAME_CHARACTERS_MAX: Final = 4_096
"""Bound of a topic's full name: the cached names take at most 64 MiB."""
PARTITION_INDEX_MAX: Final = 2**31 - 1

_JAVA_INTEGER = re.compile(r"[-+]?[0-9]{1,10}")
_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/namespace`."""

    tenant: str
    local: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.local}"

    @classmethod
    def parse(cls, text: str) -> "NamespaceName":
        """Parses `tenant/namespace`; raises PreconditionFailed for any other text."""
        parts = text.split("/")
        if len(parts) != 2:
            raise PreconditionFailed(f"Invalid namespace format. namespace: {text}")
        check_entity_name(parts[0], "tenant")
        check_entity_name(parts[1], "namespace")
        return cls(*parts)


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic or one partition of it. `str()` gives the full form."""

    domain: str
    tenant: str
    namespace_local: str
    local: str

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace_local}/{self.local}"

    @property
    def persistent(self) -> bool:
        return self.domain == "persistent"

    @property
    def namespace(self) -> NamespaceName:
        return NamespaceName(self.tenant, self.namespace_local)

    @property
    def encoded_local(self) -> str:
        """The local name in metadata keys and URLs: percent-encoded."""
        return quote(self.local, safe="")

    @property
    def partition_index(self) -> int:
        """N of `…-partition-N`, or -1 if the topic is not a partition."""
        _, separator, tail = self.local.rpartition(PARTITION_SUFFIX)
        # "x-partition-01" is an ordinary topic name: Pulsar accepts canonical numbers only.
        if not separator or len(tail) > 10 or not (tail.isascii() and tail.isdigit()):
            return -1
        index = int(tail)
        return index if str(index) == tail and index <= PARTITION_INDEX_MAX else -1

    @property
    def numbered(self) -> str:
        """The local name before `-partition-NUMBER`, or an empty string.

        NUMBER is any integer that Java parses: `x-partition-01` has one, but is not a partition.
        """
        head, separator, tail = self.local.rpartition(PARTITION_SUFFIX)
        return head if separator and _JAVA_INTEGER.fullmatch(tail) else ""

    @property
    def base(self) -> "TopicName":
        """The partitioned topic that this partition belongs to, or the topic itself."""
        if self.partition_index < 0:
            return self
        local = self.local.rpartition(PARTITION_SUFFIX)[0]
        return TopicName(self.domain, self.tenant, self.namespace_local, local)

    def partition(self, index: int) -> "TopicName":
        """Partition `index` of this topic."""
        local = f"{self.local}{PARTITION_SUFFIX}{index}"
        return TopicName(self.domain, self.tenant, self.namespace_local, local)

    @classmethod
    def from_encoded(cls, domain: str, namespace: NamespaceName, encoded: str) -> "TopicName":
        """The inverse of `encoded_local`."""
        return cls(domain, namespace.tenant, namespace.local, unquote(encoded))


def parse_topic(text: str) -> TopicName:
    """Parses a full or short topic name; raises InvalidTopicName that names the error."""
    if len(text) > NAME_CHARACTERS_MAX:
        raise InvalidTopicName(f"A topic name of {len(text)} characters is too long")
    return _parsed(text)


@lru_cache(maxsize=NAMES_CACHED_MAX)
def _parsed(text: str) -> TopicName:
    if "://" in text:
        domain, _, rest = text.partition("://")
        if domain not in DOMAINS:
            raise InvalidTopicName(f"Invalid topic domain: '{domain}' in '{text}'")
        parts = rest.split("/", 2)
        if len(parts) == 3 and parts[2].count("/") == 1 and all(parts[2].split("/")):
            raise InvalidTopicName(
                f"V1 topic names with a cluster are not supported: '{text}'; "
                "use persistent://tenant/namespace/topic"
            )
    else:
        domain, parts = "persistent", text.split("/")
        if len(parts) == 1:
            parts = ["public", "default", text]
        if len(parts) != 3:
            raise InvalidTopicName(
                f"Invalid short topic name '{text}', it should be in the format of "
                "<tenant>/<namespace>/<topic> or <topic>"
            )
    if len(parts) != 3 or not all(parts):
        raise InvalidTopicName(
            f"Invalid topic name: '{text}', it should be domain://tenant/namespace/topic"
        )
    for part, kind in ((parts[0], "tenant"), (parts[1], "namespace")):
        if not _ENTITY.fullmatch(part):
            raise InvalidTopicName(f"Invalid {kind} name '{part}' in topic '{text}'")
    return TopicName(domain, *parts)


def is_entity_name(name: str) -> bool:
    """Whether `name` is valid for a tenant, a namespace or a cluster."""
    return _ENTITY.fullmatch(name) is not None


def check_entity_name(name: str, kind: str) -> None:
    """Raises PreconditionFailed unless `name` has only letters, digits and `-=:._`."""
    if not is_entity_name(name):
        raise PreconditionFailed(f"Invalid {kind} name '{name}': use letters, digits and -=:._")
