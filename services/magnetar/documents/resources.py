"""Bodies of requests about tenants, topics and schemas, and message ids, with Pulsar's names."""

from typing import Self

import msgspec

from magnetar.core.ids import EARLIEST, ID_MAX, LATEST, Position


class InvalidMessageId(ValueError):
    """A text that stands for no message id."""


class TenantInfo(msgspec.Struct, rename="camel"):
    """Body of `PUT` and `POST /tenants/{tenant}`."""

    admin_roles: list[str] | None = None
    allowed_clusters: list[str] | None = None


class MessageId(msgspec.Struct, rename="camel"):
    """A message id in a body; missing fields mean the latest, as in Pulsar's deserializer.

    It has no batch size: clients do not know it, so it is read from the entry.
    """

    ledger_id: int | None = None
    entry_id: int | None = None
    partition_index: int = -1
    batch_index: int = -1
    is_excluded: bool = False
    excluded: bool = False
    properties: dict[str, str] | None = None

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Returns the id of `earliest` or `latest`; raises InvalidMessageId for another text."""
        if text == "earliest":
            return cls(EARLIEST.ledger_id, EARLIEST.entry_id)
        if text != "latest":
            raise InvalidMessageId(f"`{text}` is neither `earliest` nor `latest`")
        return cls(LATEST.ledger_id, LATEST.entry_id)

    @property
    def after(self) -> bool:
        """Whether the range begins after the message.

        Java's client writes `excluded`, Pulsar's documentation `isExcluded`.
        """
        return self.is_excluded or self.excluded

    @property
    def position(self) -> Position:
        """The position; EARLIEST or LATEST for any form in which clients write these."""
        if self.ledger_id is None or self.entry_id is None or self.ledger_id >= ID_MAX:
            return LATEST
        if self.ledger_id < 0:
            return EARLIEST
        return Position(self.ledger_id, self.entry_id)

    @property
    def cursor_position(self) -> Position:
        """The position for moving a cursor, where missing fields count as 0, as in Pulsar.

        A body without an id therefore begins at the first message and skips none.
        """
        return msgspec.structs.replace(
            self, ledger_id=self.ledger_id or 0, entry_id=self.entry_id or 0
        ).position


class SchemaPayload(msgspec.Struct, rename="camel"):
    """Body of `POST /schemas/…/schema`, `/compatibility` and `/version`."""

    type: str = "NONE"
    schema: str = ""
    properties: dict[str, str] = {}


class PartitionedMetadata(msgspec.Struct, rename="camel"):
    """Body of `PUT …/partitions` in its long form; the short form is a bare number."""

    partitions: int
    properties: dict[str, str] = {}
    deleted: bool = False
    """Sent by Java's client; Pulsar's brokers set it during a deletion."""


def message_id(
    position: Position, partition: int = -1, *, batch_index: int = -1
) -> dict[str, object]:
    """Returns a message id for an answer, in the form that Java's client reads."""
    document: dict[str, object] = {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": partition,
        "batchIndex": batch_index,
        "batchSize": 0,
    }
    if batch_index >= 0:
        document |= {"outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
    return document
