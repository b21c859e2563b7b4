"""Runs the steps of one scenario on one server and returns what it observed of each.

Two servers need different times for the same thing, so no step depends on time: if the observation
to be compared with is known, the driver waits for it, up to a deadline, and returns what it has
then. If it is not known, it waits until nothing has changed for `QUIET_S`.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pulsar

from . import messages, rest, stats
from .clients import Clients
from .go_client import GoClient, GoError
from .steps import Scenario, Step

# While recording: nothing comes any more, nothing changes any more.
QUIET_S = 3.5
# While comparing: what must come, and what must not.
PATIENCE_S = 15.0
SILENCE_S = 0.15
# A compaction waits for those of other topics, and for the start of its process.
COMPACTION_S = 120.0
RUNNING = [200, {"status": "RUNNING"}]
POLL_S = 0.02
READER = re.compile(r"(multiTopicsReader|reader)-[0-9a-f]{8,}")
TOKEN = re.compile(r"\{(ledger|entry|time|txn):([^}]+)\}")


class Run:
    """One scenario on one server, in a namespace of its own."""

    def __init__(
        self, client: pulsar.Client, service_url: str, requests: rest.Rest, namespace: str
    ) -> None:
        self.rest, self.namespace = requests, namespace
        self._ids = messages.Ids()
        self._clients = Clients(client, namespace, self._ids)
        self._go = GoClient(service_url, namespace, self._ids)
        self._expected: Any = None

    def observations(
        self,
        scenario: Scenario,
        expected: list[Any] | None,
        go_on: Callable[[Step, Any, Any], bool],
    ) -> list[Any]:
        """Runs the steps; ends after one whose observation is not as `go_on` wants it."""
        found: list[Any] = []
        try:
            for index, each in enumerate(scenario.steps):
                self._expected = None if expected is None else expected[index]
                found.append(self._observed(each))
                if expected is not None and not go_on(each, expected[index], found[-1]):
                    break
        finally:
            try:
                self._clients.close_all()
            finally:
                self._go.close_all()
        return found

    def _observed(self, each: Step) -> Any:
        owners = ((self, f"_{each.op}"), (self._go, each.op), (self._clients, each.op))
        action = next(found for owner, name in owners if (found := getattr(owner, name, None)))
        try:
            return action(each.on, **self._filled(each.arguments))
        except pulsar.PulsarException as error:
            return {"error": type(error).__name__}
        except GoError as error:
            return {"error": str(error)}
        except KeyError as error:
            # An earlier step could not open or send it, as its own observation says.
            return {"absent": str(error)}

    def _receive(
        self,
        on: str,
        count: int,
        together: list[str] | None = None,
        unordered: bool = False,
        places: bool = True,
    ) -> Any:
        """Receives up to `count` messages; of several consumers, as a sorted list of all.

        Without `places`, their ids are not compared.
        """
        names = [on, *(together or [])]
        wanted = None if self._expected is None else _length(self._expected)
        found: list[Any] = []
        patience = QUIET_S if wanted is None else PATIENCE_S
        deadline = time.monotonic() + patience
        for name in names:
            self._receiver(name).forget_received(name)
        while len(found) < count:
            if wanted is not None and len(found) == wanted:
                deadline = time.monotonic() + SILENCE_S
            came = self._one(names, deadline)
            if came is None:
                break
            found.append(came if places else [came[0], *came[2:]])
            deadline = time.monotonic() + patience
        return sorted(found, key=json.dumps) if together or unordered else found

    def _receiver(self, name: str) -> Clients | GoClient:
        return self._go if name in self._go.consumers else self._clients

    def _one(self, names: list[str], deadline: float) -> Any:
        """The next message of any of the consumers."""
        while (left_s := deadline - time.monotonic()) > 0:
            slice_s = left_s if len(names) == 1 else min(left_s, POLL_S)
            for name in names:
                came = self._receiver(name).receive_one(name, max(int(slice_s * 1000), 1))
                if came is not None:
                    return came
        return None

    def _has_more(self, on: str) -> Any:
        """While recording, the step is repeated until the client is connected: clients in C++ close
        their connection when Pulsar announces the end of a topic."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._clients.has_more(on)
            except pulsar.PulsarException:
                if self._expected is not None or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def _admin(
        self,
        on: str,
        method: str,
        path: str,
        body: Any = None,
        keep: list[str] | None = None,
        eventually: bool = False,
    ) -> Any:
        def ask() -> Any:
            answer = self.rest.ask(method, path, body)
            return json.loads(self._stable(json.dumps(rest.observed(answer, {}, keep))))

        return self._settled(ask) if eventually else ask()

    def _stats(self, on: str) -> Any:
        """The figures of the topic `on`, once they are settled."""
        path = f"{self._clients.path(on)}/stats?getPreciseBacklog=true"

        def ask() -> Any:
            answer = self.rest.ask("GET", path)
            if answer.status != 200:
                return [answer.status]
            document: Any = answer.document()
            return json.loads(self._stable(json.dumps(stats.of_topic(document))))

        return self._settled(ask)

    def _settled(self, ask: Callable[[], Any]) -> Any:
        """Asks until the answer is the expected one, or, if none is known, until it is stable."""
        found, since = ask(), time.monotonic()
        limit = QUIET_S if self._expected is None else PATIENCE_S
        pause = POLL_S
        while found != self._expected:
            if time.monotonic() - since >= (COMPACTION_S if found == RUNNING else limit):
                break
            time.sleep(pause)
            pause = min(pause * 1.5, 0.2)
            again = ask()
            if again != found and self._expected is None:
                since = time.monotonic()
            found = again
        return found

    def _stable(self, text: str) -> str:
        tenant = self.namespace.partition("/")[0]
        names = {
            self.namespace: "$N",
            f"{tenant}/": "$T/",
            self.namespace.partition("/")[2]: "$n",
        }
        return READER.sub(r"\1", self._ids.replaced(rest.replaced(text, names)))

    def _filled(self, value: Any) -> Any:
        """Fills in the scenario's names and what earlier steps have seen."""
        if isinstance(value, dict):
            if "$id" in value:
                found = self._ids.by_payload[value["$id"]]
                position = {"ledgerId": found.ledger_id(), "entryId": found.entry_id()}
                return {**position, "partitionIndex": -1, "batchIndex": found.batch_index()} | {
                    name: self._filled(each) for name, each in value.items() if name != "$id"
                }
            return {name: self._filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._filled(each) for each in value]
        if isinstance(value, str) and ("$" in value or "{" in value):
            tenant = self.namespace.partition("/")[0]
            text = value.replace("$N", self.namespace).replace("$T", tenant)
            filled = TOKEN.sub(self._token, text)
            return int(filled) if value.startswith("{time:") and filled.isdigit() else filled
        return value

    def _token(self, found: re.Match[str]) -> str:
        kind, payload = found[1], found[2]
        if kind == "time":
            return str(self._ids.sent_at_ms[payload])
        if kind == "txn":
            return "/".join(self._ids.transactions[payload])
        message_id = self._ids.by_payload[payload]
        return str(message_id.ledger_id() if kind == "ledger" else message_id.entry_id())


def _length(expected: Any) -> int:
    return len(expected) if isinstance(expected, list) else 0
