"""Transfers between accounts under faults: every order counts exactly once.

`python -m tests.chaos.accounts [--minutes 20] [--seed N] [--rate 10] [--dir DIR]`.

Official Java clients (`tests/interop/java/accounts`) write orders, and carry each out in one
transaction: a debit in one account's topic, a credit in another's, and the ack of the order. The
processes of the cluster are killed, paused and cut off meanwhile, topics are unloaded, workers die.
Then all is healed, the workers finish, Python's reader reads all topics, and `accounts_rules`
judges.

The brokers deduplicate: a producer that connects again repeats messages whose receipt it lost, in a
transaction as outside of one.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import pulsar
from tests.chaos.accounts_clients import Bank, Workers
from tests.chaos.accounts_rules import Books, Entry, Order
from tests.chaos.campaign import SETTINGS
from tests.chaos.faulty_cluster import FaultyCluster, Tell
from tests.chaos.plan import ACCOUNT_ROLES, KINDS, WORKER, plan
from tests.chaos.workload import id_text
from tests.interop.java_programs import accounts_command

NAMESPACE: Final = "public/accounts"
ACCOUNTS: Final = 20
WORKERS: Final = 2
ORDER_PARTITIONS: Final = 4
ATTACH_TIMEOUT_S: Final = 120.0
STALLED_S: Final = 120.0
"""Without a new observation: all clients have connected again within it."""
POLL_S: Final = 0.5
READ_TIMEOUT_MS: Final = 20_000
HTTP_TIMEOUT_S: Final = 30.0
SETTINGS_OF_ACCOUNTS: Final = {
    **SETTINGS,
    "transactionCoordinatorEnabled": "true",
    "brokerDeduplicationEnabled": "true",
}


@dataclass(slots=True)
class Result:
    """What came of a campaign."""

    books: Books
    contradictions: list[str]
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> str:
        """Return what happened, for people."""
        books = self.books
        times = sorted(books.commit_times_ms)
        pause_ms = max(after - before for before, after in itertools.pairwise(times))
        lines = [
            f"{len(books.orders)} orders, {len(self.faults)} faults, {self.seconds:.0f} s",
            f"commits: {len(books.commits)} answered, {books.unknown} without an answer",
            f"aborts on purpose: {books.aborted}",
            f"longest time without a commit: {pause_ms / 1000:.1f} s",
            *(f"retried: {count} x {what}" for what, count in books.failures.most_common()),
        ]
        return "\n".join(lines)


class Campaign:
    """The cluster, the bank and the workers."""

    def __init__(self, root: Path, rate: int, tell: Tell) -> None:
        self._tell = tell
        self._orders = [
            f"persistent://{NAMESPACE}/orders-partition-{index}"
            for index in range(ORDER_PARTITIONS)
        ]
        self._accounts = [f"persistent://{NAMESPACE}/account-{index}" for index in range(ACCOUNTS)]
        self.cluster = FaultyCluster(
            root / "cluster",
            settings=SETTINGS_OF_ACCOUNTS,
            namespace=NAMESPACE,
            topics=[*self._orders, *self._accounts],
            tell=tell,
        )
        self.bank = Bank(root, self._command("bank", rate))
        self.workers = Workers(root, self._command("work", 4), WORKERS)

    def _command(self, role: str, last: int) -> Callable[[], list[str]]:
        def command() -> list[str]:
            url = self.cluster.service_url
            return accounts_command(role, url, NAMESPACE, str(ACCOUNTS), str(last))

        return command

    async def start(self) -> None:
        """Return once all clients are attached and the first transfers are committed."""
        await self.cluster.start()
        http = self.cluster.processes.http_urls[0]
        async with httpx.AsyncClient(timeout=HTTP_TIMEOUT_S, follow_redirects=True) as client:
            url = f"{http}/admin/v2/persistent/{NAMESPACE}/orders/partitions"
            answer = await client.put(url, json=ORDER_PARTITIONS)
            answer.raise_for_status()
        await asyncio.to_thread(self.bank.start)
        await asyncio.to_thread(self.workers.start)
        await self._until(lambda: bool(self._seen().commits), ATTACH_TIMEOUT_S, "a first commit")

    def _seen(self) -> Books:
        books = Books(ACCOUNTS)
        books.read([*self.bank.lines(), *self.workers.lines()])
        return books

    async def _until(self, done: Callable[[], bool], stalled_s: float, what: str) -> None:
        """Return when `done`; raises TimeoutError if no client observes anything so long."""
        size, moved = -1, time.monotonic()
        while not await asyncio.to_thread(done):
            now = self.bank.size() + self.workers.size()
            if now != size:
                size, moved = now, time.monotonic()
            if time.monotonic() - moved > stalled_s:
                raise TimeoutError(f"{what} did not come; clients saw nothing new in {stalled_s} s")
            await asyncio.sleep(POLL_S)

    async def finish(self) -> Books:
        """Let the workers carry out what is left, and read all topics."""
        await asyncio.to_thread(self.bank.end_orders)
        with contextlib.suppress(TimeoutError):  # the judgment names what is missing
            await self._until(self._acked, STALLED_S, "the ack of every order")
        await asyncio.to_thread(self.workers.stop)
        books = Books(ACCOUNTS)
        await asyncio.to_thread(self._read_back, books)
        stored = {entry for entries in books.entries.values() for entry in entries}

        def audited() -> bool:
            got = (entry for entries in self._seen().audited.values() for entry in entries)
            return stored <= set(got)

        with contextlib.suppress(TimeoutError):  # as above
            await self._until(audited, STALLED_S, "the delivery of every entry")
        await asyncio.to_thread(self.bank.stop)
        books.read([*self.bank.lines(), *self.workers.lines()])
        return books

    def _acked(self) -> bool:
        """Whether the subscription of the workers has no backlog."""
        http = self.cluster.processes.http_urls[0]
        for topic in self._orders:
            path = topic.replace("://", "/")
            url = f"{http}/admin/v2/{path}/stats?getPreciseBacklog=true"
            try:
                answer = httpx.get(url, timeout=HTTP_TIMEOUT_S, follow_redirects=True)
                answer.raise_for_status()
            except httpx.HTTPError:
                return False
            if answer.json()["subscriptions"]["workers"]["msgBacklog"]:
                return False
        return True

    def _read_back(self, books: Books) -> None:
        """Read every topic from its beginning, by the official Python client's reader."""
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(self.cluster.service_url, logger=quiet)
        for topic in self._orders:
            books.orders += [Order.parse(text) for _, text in _read(client, topic)]
        for account, topic in enumerate(self._accounts):
            books.entries[account] = [
                Entry.parse(place, text) for place, text in _read(client, topic)
            ]
        client.close()

    async def stop(self) -> None:
        """Kill everything."""
        self.bank.kill()
        self.workers.kill()
        await self.cluster.stop()


def _read(client: pulsar.Client, topic: str) -> list[tuple[str, str]]:
    """Return `ledger:entry` and text of all messages."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(READ_TIMEOUT_MS)
        place, _, _ = id_text(message.message_id()).rpartition(":")
        found.append((place, message.data().decode()))
    reader.close()
    return found


async def run(
    root: Path,
    *,
    seconds: float,
    seed: int,
    rate: int,
    quiet_s: Sequence[float] = (3.0, 8.0),
    lasts_s: Sequence[float] = (0.5, 8.0),
    kinds: Sequence[str] = KINDS,
    roles: Sequence[str] = ACCOUNT_ROLES,
    tell: Tell = print,
) -> Result:
    """Run a whole campaign; raises if the cluster or a client cannot continue."""
    begun = time.monotonic()
    campaign = Campaign(root, rate, tell)
    try:
        await campaign.start()
        counts = {**campaign.cluster.counts, WORKER: WORKERS}
        faults = plan(seed, counts, quiet_s=quiet_s, lasts_s=lasts_s, kinds=kinds, roles=roles)
        others = {WORKER: campaign.workers.disturb}
        await campaign.cluster.disturb(seconds, faults, others)
        tell("healed; the workers finish")
        books = await campaign.finish()
    finally:
        await campaign.stop()
    done = [f"{fault.kind} {fault.target}" for fault in campaign.cluster.faults]
    return Result(books, books.contradictions(), done, time.monotonic() - begun)


def main() -> None:
    """Run the campaign that the arguments describe; the status says whether all rules hold."""
    parser = argparse.ArgumentParser(description="transfers in transactions under faults")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--rate", type=int, default=10, help="orders/s")
    parser.add_argument("--dir", type=Path, help="where all is kept (default: a new directory)")
    args = parser.parse_args()
    root = args.dir or Path(tempfile.mkdtemp(prefix="accounts-"))
    root.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {text}", flush=True)

    tell(f"seed {args.seed}, everything in {root}")
    result = asyncio.run(
        run(root, seconds=args.minutes * 60, seed=args.seed, rate=args.rate, tell=tell)
    )
    print(f"\n{result.summary()}")
    for contradiction in result.contradictions:
        print(f"BROKEN: {contradiction}")
    print("broken promises:", len(result.contradictions))
    sys.exit(1 if result.contradictions else 0)


if __name__ == "__main__":
    main()
