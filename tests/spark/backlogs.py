"""A namespace with every kind of backlog on a real cluster, and its broker's stats."""

import contextlib
import io
import json
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx
import pulsar
from tests.support.cluster_processes import brokers, wait_for

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.core.names import parse_topic
from magnetar.jobs.event_loop import run
from magnetar.offload.cold_files import ColdFiles
from magnetar_spark.jobs.backlog.gather.policies import Keeping
from magnetar_spark.jobs.backlog.gather.topic_state import TopicState, topic_state
from magnetar_spark.jobs.main import main
from magnetar_spark.log.access import opened_log
from magnetar_spark.log.settings import LogSettings

NAMESPACE: Final = "public/backlogs"
PREFIX: Final = f"persistent://{NAMESPACE}/"
PARTITIONS: Final = 3
RECEIVE_MS: Final = 30_000
DEAD_LETTERS: Final = 4


@dataclass(frozen=True)
class Admin:
    """The admin REST of the cluster's only broker."""

    url: str

    def get(self, path: str) -> Any:
        answer = httpx.get(f"{self.url}/admin/v2/{path}", timeout=30)
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def call(self, method: str, path: str, body: object = None) -> None:
        answer = httpx.request(method, f"{self.url}/admin/v2/{path}", json=body, timeout=30)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"

    def stats(self, topic: str) -> dict[str, Any]:
        path = f"{topic.replace('://', '/')}/stats"
        found: dict[str, Any] = self.get(f"{path}?getEarliestTimeInBacklog=true")
        return found

    def backlogs(self, topic: str) -> dict[str, int]:
        """Returns `msgBacklog` by subscription."""
        subscriptions = self.stats(topic)["subscriptions"]
        return {name: each["msgBacklog"] for name, each in subscriptions.items()}

    def analyzed(self, topic: str, subscription: str) -> dict[str, Any]:
        """Returns the broker's own analysis of the backlog."""
        path = f"{topic.replace('://', '/')}/subscription/{subscription}/analyzeBacklog"
        answer = httpx.post(f"{self.url}/admin/v2/{path}", timeout=30)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found


def state_of(cluster: LocalCluster, topic: str) -> TopicState:
    """Returns the state of a topic that the job reads."""

    async def state() -> TopicState:
        cold = ColdFiles()
        async with opened_log(LogSettings(cluster.metadata_url)) as log:
            found = await topic_state(log.context, parse_topic(topic), Keeping(), cold)
        await cold.close()
        assert found is not None
        return found

    return run(state())


def printed(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Runs a job; returns its exit code and the summary that it prints."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = main([*arguments, "--json", "--no-progress"])
    return code, json.loads(text.getvalue())


class World:
    """A namespace with every kind of backlog. Its consumers stay connected until `close`."""

    def __init__(self, cluster: LocalCluster, client: pulsar.Client) -> None:
        self.cluster = cluster
        self.client = client
        self.admin = Admin(brokers(cluster)[0].http_url)
        self.open = ExitStack()
        self.admin.call("PUT", f"namespaces/{NAMESPACE}")
        self.orders()
        self.plain()
        self.batches()
        self.without_messages()
        self.dead_letters()
        self.stored()

    def close(self) -> None:
        self.open.close()

    def publish(self, topic: str, count: int, *, keys: int = 7) -> list[pulsar.MessageId]:
        """Publishes messages, one entry each."""
        with closing(self.client.create_producer(topic, batching_enabled=False)) as producer:
            return [
                producer.send(f"message {n}".encode() * 5, partition_key=f"key-{n % keys}")
                for n in range(count)
            ]

    def orders(self) -> None:
        """Creates partitions, and a Key_Shared subscription that acks every second message."""
        topic = PREFIX + "orders"
        self.admin.call("PUT", f"{topic.replace('://', '/')}/partitions", PARTITIONS)
        consumers = [
            self.open.enter_context(
                closing(
                    self.client.subscribe(
                        topic,
                        "shipping",
                        pulsar.ConsumerType.KeyShared,
                        consumer_name=f"worker-{number}",
                        initial_position=pulsar.InitialPosition.Earliest,
                    )
                )
            )
            for number in range(2)
        ]
        self.publish(topic, 90)
        received = 0
        while received < 90:
            for consumer in consumers:
                try:
                    message = consumer.receive(50)
                except pulsar.Timeout:
                    continue
                received += 1
                if received % 2:
                    consumer.acknowledge(message)
        self.settled([self.partition(n) for n in range(PARTITIONS)], "shipping", 45)

    def partition(self, number: int) -> str:
        return f"{PREFIX}orders-partition-{number}"

    def plain(self) -> None:
        """Writes ledgers of 20 entries; subscriptions at end and middle, rewound, and unused."""
        topic = PREFIX + "plain"
        path = f"{topic.replace('://', '/')}/subscription"
        with ExitStack() as consuming:
            consumers = {
                name: consuming.enter_context(closing(self.subscribe(topic, name)))
                for name in ("middle", "caught-up", "rewound")
            }
            self.subscribe(topic, "never").close()
            ids = self.publish(topic, 65)
            for name, upto in (("middle", 30), ("caught-up", 65), ("rewound", 50)):
                messages = [consumers[name].receive(RECEIVE_MS) for _ in range(upto)]
                consumers[name].acknowledge_cumulative(messages[-1])
                self.settled([topic], name, 65 - upto)
        at = {"ledgerId": ids[24].ledger_id(), "entryId": ids[24].entry_id()}
        self.admin.call("POST", f"{path}/rewound/resetcursor", at)
        self.settled([topic], "rewound", self.admin.backlogs(topic)["rewound"])

    def subscribe(self, topic: str, name: str, **options: Any) -> pulsar.Consumer:
        first = pulsar.InitialPosition.Earliest
        return self.client.subscribe(topic, name, initial_position=first, **options)

    def batches(self) -> None:
        """Publishes ten batches of ten; a Shared consumer acks parts of some, and others whole."""
        topic = PREFIX + "batches"
        consumer = self.open.enter_context(
            closing(
                self.subscribe(
                    topic,
                    "parts",
                    consumer_type=pulsar.ConsumerType.Shared,
                    consumer_name="picker",
                    batch_index_ack_enabled=True,
                )
            )
        )
        options = {"batching_enabled": True, "batching_max_messages": 10}
        delay = {"batching_max_publish_delay_ms": 60_000}
        with closing(self.client.create_producer(topic, **options, **delay)) as producer:
            for number in range(100):
                producer.send_async(f"{number}".encode(), lambda *_: None, partition_key="one")
            producer.flush()
        messages = [consumer.receive(RECEIVE_MS) for _ in range(100)]
        # Of the first batch three, of the fourth all, of the seventh all but the last.
        for number in (0, 4, 5, *range(30, 40), *range(60, 69)):
            consumer.acknowledge(messages[number])
        self.settled([topic], "parts", 9)

    def without_messages(self) -> None:
        self.subscribe(PREFIX + "silent", "waiting").close()

    def dead_letters(self) -> None:
        """Publishes dead letters as clients do."""
        topic = PREFIX + "plain-middle-DLQ"
        properties = {
            "REAL_TOPIC": PREFIX + "plain",
            "ORIGIN_MESSAGE_ID": "1:2:-1",
            "RECONSUMETIMES": "3",
        }
        with closing(self.client.create_producer(topic)) as producer:
            for number in range(DEAD_LETTERS):
                producer.send(f"poison {number}".encode(), properties=properties)
            producer.send(b"no dead letter")

    def state(self, topic: str) -> TopicState:
        return state_of(self.cluster, topic)

    def settled(self, topics: list[str], subscription: str, entries: int) -> None:
        """Returns once the broker has all acknowledgments."""
        wait_for(
            lambda: sum(self.admin.backlogs(t)[subscription] for t in topics) == entries,
            f"{subscription} has {entries} left",
        )

    def stored(self) -> None:
        """Returns once the stored state equals the broker's, within a second while nothing changes.

        A batch counts in the backlog until all its messages are acked, so partial acks are
        compared, too.
        """
        topics = [f"{PREFIX}{name}" for name in ("plain", "batches", "silent", "plain-middle-DLQ")]
        topics += [self.partition(number) for number in range(PARTITIONS)]
        for topic in topics:
            wait_for(partial(self._is_stored, topic), f"{topic}'s cursors are stored")

    def _is_stored(self, topic: str) -> bool:
        state = self.state(topic)
        found = {each.name: each.acks for each in state.subscriptions}
        if "batches" in topic and any(a is None or len(a.batches) < 2 for a in found.values()):
            return False
        backlogs = {name: -1 if acks is None else acks.backlog for name, acks in found.items()}
        return backlogs == self.admin.backlogs(topic)
