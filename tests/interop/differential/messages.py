"""Messages and their ids in a form that two servers can share.

A message is known by its payload, which is unique within a scenario. Ids are those of the topic's
ledgers by the order in which they appear, since two servers number them differently.
"""

import re
from typing import Any

import pulsar

POSITION = re.compile(r"(?<![\d:.])(\d+):(-?\d+)(?!\d)")
LEDGER = re.compile(r'("ledgerId": )(\d+)')
PAYLOAD_PREFIX = 24


class Ids:
    """The ids of the messages that a scenario has seen."""

    def __init__(self) -> None:
        self._ledgers: dict[int, str] = {}
        self._counts: dict[str, int] = {}
        self.by_payload: dict[str, pulsar.MessageId] = {}
        self.sent_at_ms: dict[str, int] = {}
        self.transactions: dict[str, tuple[str, str]] = {}

    def name(self, topic: str, found: pulsar.MessageId) -> str:
        """Returns the id as `LEDGER:ENTRY:INDEX`, with the partition if there is one."""
        ledger = self._ledger(topic, found.ledger_id(), found.partition())
        text = f"{ledger}:{found.entry_id()}"
        return text if found.batch_index() < 0 else f"{text}:{found.batch_index()}"

    def _ledger(self, topic: str, ledger: int, partition: int) -> str:
        if ledger < 0 or ledger >= 2**62:
            return str(ledger)
        if ledger not in self._ledgers:
            base = re.sub(r"-partition-\d+$", "", topic.rpartition("/")[2])
            key = base if partition < 0 else f"{base}-{partition}"
            count = self._counts.get(key, 0)
            self._counts[key] = count + 1
            self._ledgers[ledger] = f"{key}/{count}"
        return self._ledgers[ledger]

    def replaced(self, text: str) -> str:
        """Replaces the known ledgers of all positions in a text, and transactions."""
        for name, (most, least) in self.transactions.items():
            text = text.replace(f"({most},{least})", f"$txn:{name}")
        return LEDGER.sub(self._field, POSITION.sub(self._position, text))

    def _field(self, found: re.Match[str]) -> str:
        # A ledger of which no message was seen, as an empty topic has.
        return f'{found[1]}"{self._ledgers.get(int(found[2]), "unseen")}"'

    def _position(self, found: re.Match[str]) -> str:
        ledger = self._ledgers.get(int(found[1]))
        return found[0] if ledger is None else f"{ledger}:{found[2]}"


def observed(message: pulsar.Message, ids: Ids, value: object = None) -> list[object]:
    """What is compared of a message that was received; what is absent is left out."""
    payload = shown(message.data()) if value is None else value
    found: dict[str, Any] = {
        "key": message.partition_key() or None,
        "ordering": message.ordering_key() or None,
        "properties": stable_properties(message.properties(), ids),
        "redelivered": message.redelivery_count() or None,
        "event": message.event_timestamp() or None,
    }
    extra = {name: value for name, value in found.items() if value is not None}
    row = [payload, ids.name(message.topic_name(), message.message_id())]
    return [*row, extra] if extra else row


def shown(data: bytes) -> str:
    """Returns a payload as text; a long one by its beginning and length."""
    text = data.decode(errors="replace")
    return text if len(text) <= PAYLOAD_PREFIX else f"{text[:PAYLOAD_PREFIX]}…{len(text)}"


def stable_properties(properties: dict[str, str], ids: Ids) -> dict[str, str] | None:
    found = {name: _stable(name, value, ids) for name, value in sorted(properties.items())}
    return found or None


def _stable(name: str, value: str, ids: Ids) -> str:
    """Letters name their original topic, and the original's id as `(ledger,entry,…)` or, in Go,
    `ledger:entry:…`."""
    if name.startswith("ORIGIN_MESSAGE_ID"):
        return ids.replaced(re.sub(r"(?<=\()(\d+),(-?\d+)", r"\1:\2", value))
    return value.rpartition("/")[2] if name == "REAL_TOPIC" else value
