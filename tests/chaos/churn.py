"""Clients that cut themselves off, and delete and make again subscriptions, over their own wire.

Official clients finish what they begin. These do not: they close their connection while SUBSCRIBE,
UNSUBSCRIBE or PRODUCER is under way, and come back. Each has one subscription of a topic that
official clients write. Runs as a process of its own, which nobody kills. Each line of the output
is one observation of `topic` and `life`, the number of times the subscription was made:

- `S topic life since anew`: it is there, from `since` on; `anew` is when it was asked for first, if
  it was made at the latest position and certainly not there before, else -1;
- `G topic life number ledger:entry`: a message came;
- `X topic life at`: its deletion begins;
- `V topic what`: a promise was broken; `E topic what`: something that no client expects.

A line on stdin calms them: they delete and cut nothing more. A second one ends them.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from tests.chaos.consumer import addresses_of
from tests.chaos.recording import Histories, by_wire
from tests.chaos.workload import Log, parse
from tests.history.events import Outcome
from tests.sim.client import PASSING, Client, Refused, Wire
from tests.sim.recording import Recording, Session

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.batch import messages_of
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import encode_command

SUBSCRIPTION: Final = "churn"
PERMITS: Final = 1_000
STAYS_S: Final = 2.0
CUT_CHANCE: Final = 0.3
CUTS_S: Final = (0.0005, 0.003, 0.01, 0.1)
AGAIN_S: Final = (0.05, 0.5)
REST_TIMEOUT_S: Final = 40.0
SETTLED_S: Final = 5.0
"""A client that attached so long ago has what was due to it."""
ACTIONS: Final = ("leave", "cut", "unsubscribe", "unsubscribe", "unsubscribe", "rest", "producer")

Place = tuple[int, int]


class Churner:
    """One subscription and its only client; `run` until cancelled."""

    def __init__(
        self,
        client: Client,
        admins: list[str],
        topic: str,
        log: Log,
        recording: Recording,
        rng: random.Random,
    ) -> None:
        self.number = 0
        self.calm = False
        self._client, self._admins, self._topic, self._log = client, admins, topic, log
        self._rng, self._recording = rng, recording
        self._session = self._new_session(0)
        self._gone = asyncio.Event()
        self._life = 0
        self._present = False
        self._absent = True
        self._asked_at: float | None = None
        self._attached_at = 0.0
        self._wire: Wire | None = None
        self._used = 0
        self._receipted: dict[Place, float] = {}
        self._acks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while True:
            try:
                wire = await self._client.broker_of(self._topic)
                await self._subscribe(wire)
                await self._stay(wire)
            except (Refused, *PASSING):
                pass
            except Exception as error:  # noqa: BLE001  # judged with all else
                self._log.write("E", self._topic, f"churn:{type(error).__name__}:{error}")
            self._leave()
            await asyncio.sleep(self._rng.uniform(*AGAIN_S))

    # -- the subscription

    def _new_session(self, position: int) -> Session:
        return self._recording.session("churn", self._topic, SUBSCRIPTION, 0, position)

    def _cut_s(self) -> float | None:
        if self.calm or self._rng.random() > CUT_CHANCE:
            return None
        return self._rng.choice(CUTS_S) * self._rng.uniform(0.3, 1.5)

    async def _subscribe(self, wire: Wire) -> None:
        now = time.monotonic()
        latest = self._rng.random() < 0.8
        if not self._present:
            self._asked_at = self._asked_at or now
            self._absent = self._absent and latest
        self.number = next(self._client.ids)
        wire.consumers[self.number] = self
        self._wire, self._attached_at, self._used = wire, now, 0
        self._gone.clear()
        command = pb.CommandSubscribe(
            topic=self._topic,
            subscription=SUBSCRIPTION,
            subType=pb.CommandSubscribe.Exclusive,
            consumer_id=self.number,
            initialPosition=0 if latest else 1,  # type: ignore[arg-type]
        )
        self._session = self._new_session(0 if latest else 1)
        await self._session.subscribe(wire, command, self._cut_s())
        if not self._present:
            self._present = True
            self._life += 1
            self._receipted.clear()
            anew_at = self._asked_at if self._absent else -1.0
            self._log.write("S", self._topic, self._life, time.monotonic(), anew_at)
        self._flow(PERMITS)

    def _flow(self, permits: int) -> None:
        if self._wire is not None:
            command = pb.CommandFlow(consumer_id=self.number, messagePermits=permits)
            self._wire.write(encode_command(CommandType.FLOW, command))

    def _leave(self) -> None:
        wire, self._wire = self._wire, None
        self._session.closed()
        if wire is not None and wire.consumers.pop(self.number, None) is not None:
            command = pb.CommandCloseConsumer(consumer_id=self.number, request_id=1 << 40)
            wire.write(encode_command(CommandType.CLOSE_CONSUMER, command))

    async def _stay(self, wire: Wire) -> None:
        if not self.calm:
            stays_s = self._rng.expovariate(1 / STAYS_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), stays_s)
                return
        if self.calm:
            await self._gone.wait()
            return
        action = self._rng.choice(ACTIONS)
        if action == "cut":
            wire.abort()
        elif action == "unsubscribe":
            await self._unsubscribe(wire)
        elif action == "rest":
            await self._delete_by_rest()
        elif action == "producer":
            command = pb.CommandProducer(topic=self._topic, producer_id=self.number)
            await wire.request(CommandType.PRODUCER, command, cut_s=self._rng.choice(CUTS_S))

    def _deleting(self) -> None:
        self._log.write("X", self._topic, self._life, time.monotonic())
        self._present = self._absent = False
        self._asked_at = None

    async def _unsubscribe(self, wire: Wire) -> None:
        self._deleting()
        command = pb.CommandUnsubscribe(consumer_id=self.number)
        await self._session.unsubscribe(wire, command, self._cut_s())
        self._absent = True
        wire.consumers.pop(self.number, None)
        self._wire = None

    async def _delete_by_rest(self) -> None:
        present = self._present
        self._deleting()
        begun = self._recording.now()

        def record(outcome: Outcome) -> None:
            where = (self._topic, SUBSCRIPTION, "")
            self._recording.unsubscribed(*where, outcome, begun)

        path = self._topic.replace("persistent://", "/admin/v2/persistent/")
        url = f"{self._rng.choice(self._admins)}{path}/subscription/{quote(SUBSCRIPTION)}"
        try:
            async with httpx.AsyncClient(timeout=REST_TIMEOUT_S, follow_redirects=True) as client:
                answer = await client.delete(url, params={"force": "true"})
        except httpx.HTTPError:
            record(Outcome.UNKNOWN)
            return
        self._absent = answer.is_success
        record(Outcome.OK if answer.is_success else Outcome.UNKNOWN)
        if answer.status_code == 404 and present:
            self._log.write("V", self._topic, f"deletion-of-life-{self._life}-not-found")

    def drained(self) -> None:
        """All faults are over, and what was due has come, if the client is attached."""
        if self._wire is not None and time.monotonic() - self._attached_at > SETTLED_S:
            self._recording.drained(self._topic, SUBSCRIPTION)

    # -- called by the connection

    def detached(self, redirect: str) -> None:
        self._wire = None
        self._session.closed()
        self._gone.set()

    def command(self, kind: int, message: Any, payload: bytes | None) -> None:
        assert payload is not None
        at = (message.message_id.ledgerId, message.message_id.entryId)
        shown = f"{at[0]}:{at[1]}"
        metadata, messages = messages_of(payload)
        self._session.received(message, metadata, messages)
        if not self._present:
            return  # it may be gone already, or not yet
        if self._receipted.get(at, self._attached_at) < self._attached_at:
            self._log.write("V", self._topic, f"{shown}-of-life-{self._life}-came-again")
        for one in messages:
            self._log.write("G", self._topic, self._life, parse(one.payload)[1], shown)
            self._used += 1
        if self._used >= PERMITS // 2:
            self._flow(self._used)
            self._used = 0
        if self._wire is not None:
            ack = asyncio.create_task(self._ack(self._wire, self.number, at, self._life))
            self._acks.add(ack)
            ack.add_done_callback(self._acks.discard)

    async def _ack(self, wire: Wire, number: int, at: Place, life: int) -> None:
        command = pb.CommandAck(consumer_id=number, ack_type=pb.CommandAck.Individual)
        command.message_id.add(ledgerId=at[0], entryId=at[1])
        try:
            answer = await self._session.ack(wire, command)
        except (Refused, *PASSING):
            return
        if not answer.HasField("error") and life == self._life and self._present:
            self._receipted.setdefault(at, time.monotonic())


async def churn(
    services: list[str], admins: list[str], topics: list[str], log: Log, histories: Histories
) -> None:
    """Until two lines have come on stdin."""
    addresses = addresses_of(services)
    rng = random.Random()
    churners = [
        Churner(
            Client(addresses, rng.randrange),
            admins,
            topic,
            log,
            by_wire(histories.of(topic)),
            random.Random(rng.random()),
        )
        for topic in topics
    ]
    tasks = [asyncio.create_task(churner.run()) for churner in churners]
    await asyncio.to_thread(sys.stdin.readline)
    for churner in churners:
        churner.calm = True
    await asyncio.to_thread(sys.stdin.readline)
    for churner in churners:
        churner.drained()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--services", nargs="+", required=True)
    parser.add_argument("--admins", nargs="+", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--topics", nargs="+", required=True)
    args = parser.parse_args()
    with open(args.out, "a") as output, Histories(Path(args.out), args.topics) as histories:
        asyncio.run(churn(args.services, args.admins, args.topics, Log(output), histories))


if __name__ == "__main__":
    main()
