"""Go's client in a scenario: transactions and retry letters, which the Python client lacks.

One process of `go/differential` for each scenario that needs it, asked line by line.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pulsar
from tests.interop.go_programs import prepare_go
from tests.interop.java_programs import LineProcess

from . import messages

ANSWER_S = 60.0
TRANSACTION_MS = 600_000
# In Go's texts: the broker's code, without its text, which names positions; and the client's own.
ACK_ERROR = re.compile(r"ack response error: (\w+)")
RESULT = re.compile(r": (Result\(\d+\)|\w+)$")


class GoError(Exception):
    """Go's client failed; the text is the part of its error that does not change."""


class GoClient:
    """Started with its first action."""

    def __init__(self, service_url: str, namespace: str, ids: messages.Ids) -> None:
        self._service_url, self._namespace, self._ids = service_url, namespace, ids
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: LineProcess | None = None
        self._counts: dict[str, int] = {}
        self.consumers: set[str] = set()

    def close_all(self) -> None:
        if self._process is not None:
            self._process.close()
        if self._directory is not None:
            self._directory.cleanup()

    def _ask(self, op: str, on: str, **fields: Any) -> Any:
        if self._process is None:
            self._directory = tempfile.TemporaryDirectory(prefix="go-client-")
            command = [str(prepare_go("differential")), self._service_url]
            self._process = LineProcess(command, Path(self._directory.name) / "log")
        line = self._process.ask(json.dumps({"op": op, "on": on, **fields}), ANSWER_S)
        answer = json.loads(line)
        if "error" in answer:
            raise GoError(_kind(answer["error"]))
        return answer["value"]

    def _topic(self, name: str) -> str:
        return f"persistent://{self._namespace}/{name}"

    def begin(self, on: str, lasts_ms: int = TRANSACTION_MS) -> object:
        """Begins a transaction with the name `on`."""
        self._ids.transactions[on] = tuple(self._ask("begin", on, ms=lasts_ms))
        return "begun"

    def end(self, on: str, commits: bool) -> object:
        return self._ask("end", on, commits=commits)

    def go_producer(self, on: str, topic: str) -> object:
        return self._ask("producer", on, topic=self._topic(topic))

    def go_produce(self, on: str, messages: list[dict[str, Any]], transaction: str = "") -> object:
        """Sends one after the other, in a transaction or not.

        Pulsar stores the ends of transactions between messages, so ids are not compared.
        """
        return [self._sent(on, transaction, **each) for each in messages]

    def _sent(self, on: str, transaction: str, payload: str, partition_key: str = "") -> object:
        try:
            return self._ask(
                "produce", on, payload=payload, key=partition_key, transaction=transaction
            )
        except GoError as error:
            return {"error": str(error)}

    def go_consumer(self, on: str, topic: str, subscription: str, kind: str, **fields: Any) -> Any:
        letters = fields.pop("letters", None)
        if letters:
            letters = {**letters, "dead": self._topic(letters["dead"])}
        self._counts[on] = 0
        found = self._ask(
            *("consumer", on),
            topic=self._topic(topic),
            subscription=subscription,
            kind=kind,
            letters=letters,
            **fields,
        )
        self.consumers.add(on)
        return found

    def forget_received(self, on: str) -> None:
        self._counts[on] = 0
        self._ask("forget", on)

    def receive_one(self, on: str, within_ms: int) -> list[object] | None:
        """Returns the next message as it is compared, or None."""
        came = self._ask("receive", on, ms=within_ms)
        if came is None:
            return None
        self._counts[on] += 1
        found = {
            "key": came["key"] or None,
            "properties": messages.stable_properties(came["properties"] or {}, self._ids),
            "redelivered": came["redelivered"] or None,
        }
        extra = {name: value for name, value in found.items() if value is not None}
        row = [came["payload"], self._ids.name(came["topic"], _message_id(came["id"]))]
        return [*row, extra] if extra else row

    def go_ack(self, on: str, which: list[int], transaction: str = "") -> object:
        """Acks by the places of messages in the last receive, each answered by the broker."""
        return self._each(on, which, "ack", transaction=transaction)

    def go_ack_through(self, on: str, which: int) -> object:
        """Acks all messages up to one of the last receive."""
        return self._each(on, [min(which, self._counts[on] - 1)], "through")

    def go_nack(self, on: str, which: list[int]) -> object:
        return self._each(on, which, "nack")

    def later(self, on: str, which: list[int], after_ms: int) -> object:
        """Sends messages of the last receive to the retry topic."""
        return self._each(on, which, "later", after_ms=after_ms)

    def _each(self, on: str, which: list[int], op: str, **fields: Any) -> object:
        found = []
        for index in which:
            if 0 <= index < self._counts[on]:
                try:
                    found.append(self._ask(op, on, which=index, **fields))
                except GoError as error:
                    found.append({"error": str(error)})
        return found

    def go_close(self, on: str) -> object:
        self.consumers.discard(on)
        return self._ask("close", on)


def _message_id(place: list[int]) -> pulsar.MessageId:
    # Go counts a topic without partitions as the first one.
    ledger, entry, _, index = place
    return pulsar.MessageId(-1, ledger, entry, index)


def _kind(text: str) -> str:
    found = ACK_ERROR.search(text)
    return found[1] if found else RESULT.sub("", text)
