"""Aborted and open messages over every read path of a broker, after random transactions.

Known bugs of Pulsar: apache/pulsar#19814 (a replay of a Shared subscription delivered aborted
messages) and apache/pulsar#11877, apache/pulsar#22610 (readers waited at an aborted tail, or for
a message that could not come). Spark and compaction: `tests/spark/test_txn_readable.py`.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.unit.broker.topic.stage import request
from tests.unit.broker.topic.txn_stage import TxnStage, txn_stage
from tests.unit.ledger.stage import turns

from magnetar.admin.app import create_app
from magnetar.admin.metrics.page import MetricsPage
from magnetar.broker.subscription.spec import ConsumerSpec, SubType
from magnetar.broker.topic.last_message import last_readable
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.broker.topic.subscribe import SubscribeRequest
from magnetar.core.ids import EARLIEST, LATEST, Position
from magnetar.transactions.model import Outcome, TxnId, TxnState

SLOTS = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), SLOTS),
        st.tuples(st.sampled_from(["send", "send", "send", "commit", "abort", "abort"]), SLOTS),
        st.tuples(st.sampled_from(["replay", "forget", "move", "crash"]), SLOTS),
    ),
    min_size=8,
    max_size=40,
)
PATH = "/admin/v2/persistent/public/default/t"
ENDED = {Outcome.COMMIT: TxnState.COMMITTED, Outcome.ABORT: TxnState.ABORTED}


_numbers = count()


def reader_at(start: Position) -> SubscribeRequest:
    """The request of a reader from this position on."""
    spec = ConsumerSpec(9, "r", SubType.Exclusive, durable=False)
    return SubscribeRequest(f"reader{next(_numbers)}", spec, durable=False, start=start)


@dataclass
class Reads:
    """A topic, what was written to it, and subscriptions that read from the first message on."""

    t: TxnStage
    topic: PersistentTopic
    written: list[tuple[str, TxnId | None]] = field(default_factory=list)
    open: dict[int, TxnId] = field(default_factory=dict)
    aborted: set[TxnId] = field(default_factory=set)
    attached: list[tuple[Any, Any, Any]] = field(default_factory=list)
    """Subscription, consumer and sink of each type."""
    begun: int = 0

    def visible(self) -> list[str]:
        """The texts that must be read: those before the first open transaction, but aborted."""
        texts: list[str] = []
        for text, txn in self.written:
            if txn in self.open.values():
                break
            if txn not in self.aborted:
                texts.append(text)
        return texts

    async def attach(self) -> None:
        self.attached = [
            await self.t.s.attach(self.topic, request(f"early{each}", sub_type=each))
            for each in SubType
        ]
        await turns(200)

    async def do(self, what: str, slot: int) -> None:
        await getattr(self, f"_{what}")(slot)
        await turns(30)
        for _, _, sink in self.attached:
            seen, allowed = sink.texts, self.visible()
            assert set(seen) <= set(allowed), f"{what}: {seen}, visible are {allowed}"

    async def _plain(self, _: int) -> None:
        await self._sent(None)

    async def _send(self, slot: int) -> None:
        txn = self.open.get(slot)
        if txn is None:
            self.begun += 1
            txn = self.open[slot] = TxnId(slot, self.begun)
            self.t.records.open(txn, self.topic)
        await self._sent(txn)

    async def _sent(self, txn: TxnId | None) -> None:
        text = str(len(self.written))
        self.written.append((text, txn))
        await self.t.sent(self.topic, txn, text)

    async def _commit(self, slot: int) -> None:
        await self._end(slot, Outcome.COMMIT)

    async def _abort(self, slot: int) -> None:
        await self._end(slot, Outcome.ABORT)

    async def _end(self, slot: int, outcome: Outcome) -> None:
        txn = self.open.pop(slot, None)
        if txn is None:
            return
        if outcome is Outcome.ABORT:
            self.aborted.add(txn)
        self.t.records.set(txn, ENDED[outcome])
        await self.topic.transactions.end_transaction(txn, outcome)

    async def _replay(self, _: int) -> None:
        for subscription, consumer, sink in self.attached:
            sink.take()
            subscription.redeliver(consumer)
        await turns(100)
        for subscription, _, sink in self.attached:
            assert sorted(sink.texts) == sorted(self.visible()), subscription.name

    async def _forget(self, _: int) -> None:
        """Outcomes are kept for a time only."""
        for txn, record in list(self.t.records.by_id.items()):
            if record.state.ended:
                del self.t.records.by_id[txn]

    async def _move(self, _: int, *, crash: bool = False) -> None:
        self.topic = await self.t.reopened(self.topic, crash=crash)
        await self.attach()

    async def _crash(self, slot: int) -> None:
        await self._move(slot, crash=True)

    async def check(self) -> None:
        """Reads over every path."""
        await self._replay(0)
        for sub_type in SubType:
            await self._fresh(request(f"fresh{sub_type}", sub_type=sub_type))
        await self._fresh(request("compacted", sub_type=SubType.Exclusive, read_compacted=True))
        await self._fresh(reader_at(EARLIEST))
        await self._check_last()
        await self._check_rest()

    async def _fresh(self, asked: SubscribeRequest) -> None:
        """A subscription from the first message on, twice: the second time from its replay."""
        subscription, consumer, sink = await self.t.s.attach(self.topic, asked)
        for _ in range(2):
            await turns(100)
            assert sorted(sink.texts) == sorted(self.visible()), asked
            if not asked.spec.sub_type.individual_only:
                assert sink.texts == self.visible(), asked
            sink.take()
            subscription.redeliver(consumer)
        subscription.remove_consumer(consumer)
        if asked.durable:
            await self.topic.delete_subscription(asked.subscription, force=True)

    async def _check_last(self) -> None:
        """The last message id is readable, and a reader behind it gets nothing."""
        last, visible = last_readable(self.topic.managed_ledger), self.visible()
        if not visible:
            assert last is None or last < (self.topic.managed_ledger.ledgers[0].ledger_id, 0)
            return
        assert last is not None
        entry = await self.topic.managed_ledger.read_entry(last)
        assert entry.data.endswith(visible[-1].encode())
        for start in (self.topic.managed_ledger.next_position(last), LATEST):
            _, _, sink = await self.t.s.attach(self.topic, reader_at(start))
            await turns(50)
            assert sink.texts == []

    async def _check_rest(self) -> None:
        """Peek and the analysis of the backlog."""
        service = self.t.s.service
        app = httpx.ASGITransport(create_app(service, MetricsPage(service)))
        kept = [text for text, txn in self.written if txn not in self.aborted]
        open_texts = {text for text, txn in self.written if txn in self.open.values()}
        of = f"{PATH}/subscription/early{SubType.Shared}"
        async with httpx.AsyncClient(transport=app, base_url=service.http_url) as http:
            for number, text in enumerate(kept, 1):
                peeked = await http.get(f"{of}/position/{number}")
                assert peeked.text == text
                assert "x-pulsar-txn-aborted" not in peeked.headers
                uncommitted = peeked.headers["x-pulsar-txn-uncommitted"] == "true"
                assert uncommitted or text not in open_texts
            assert (await http.get(f"{of}/position/{len(kept) + 1}")).status_code == 404
            analyzed = (await http.post(f"{of}/analyzeBacklog")).json()
        assert (analyzed["entries"], analyzed["messages"]) == (len(kept), len(kept))
        for subscription, _, _ in self.attached:
            assert subscription.backlog == len(kept)


@settings(max_examples=15, deadline=None, phases=[Phase.generate])
@given(STEPS)
def test_19814_no_read_path_shows_an_aborted_or_open_message(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        async with txn_stage() as t:
            reads = Reads(t, await t.topic())
            await reads.attach()
            for step in steps:
                await reads.do(*step)
            await reads.check()
            await reads.do("crash", 0)
            await reads.check()
            for slot in range(3):
                await reads.do("abort", slot)
            await reads.check()

    asyncio.run(run())
