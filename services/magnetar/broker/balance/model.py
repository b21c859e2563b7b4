"""The records of load balancing: load reports, orders, and logged decisions. Small JSON documents.

    /load-reports/{broker}             a LoadReport, under the broker's lease
    /balance/leader                    the leader's record, under its lease
    /balance/orders/{broker}/{bundle}  an Order, with its result once it is carried out
    /balance/log/{slot}                a Round: the leader's decisions, and their numbers
    /balance/rules/{kind}              what administrators have set (`rule_records`)

A bundle's name is always `tenant/namespace/0x00000000_0x40000000`. Loads are fractions of one core:
a broker is one event loop, so a full core is a full broker. Times are wall-clock milliseconds since
1970, because several brokers in turn compare them.
"""

from typing import Final, Literal

import msgspec

from magnetar.metadata.records import RecordType

REPORTS_PREFIX: Final = "/load-reports/"
BALANCE_PREFIX: Final = "/balance/"
LEADER_KEY: Final = f"{BALANCE_PREFIX}leader"
ORDERS_PREFIX: Final = f"{BALANCE_PREFIX}orders/"
LOG_PREFIX: Final = f"{BALANCE_PREFIX}log/"
RULES_PREFIX: Final = f"{BALANCE_PREFIX}rules/"

MESSAGE_COST_BYTES: Final = 1_024
"""A message costs a broker about as much CPU as this many bytes. Used to divide a broker's load
among its bundles, so only the proportion of bundles to each other matters."""


class BundleLoad(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A bundle's load on its owner: rates per second, and current counts."""

    bundle: str
    topics: int = 0
    producers: int = 0
    consumers: int = 0
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0

    @property
    def msg_rate(self) -> float:
        """Messages per second, in and out."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def throughput(self) -> float:
        """Bytes per second, in and out."""
        return self.msg_throughput_in + self.msg_throughput_out

    @property
    def sessions(self) -> int:
        """Producers and consumers."""
        return self.producers + self.consumers

    @property
    def cost(self) -> float:
        """The work of serving the bundle, in equivalent bytes per second."""
        return self.msg_rate * MESSAGE_COST_BYTES + self.throughput


class LoadReport(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """A broker's own load. `bundles` has only the busiest; the other numbers cover all."""

    broker_id: str
    started_ms: int
    updated_ms: int
    cpu: float = 0.0
    """Share of one core since the last report; above 1 if threads use other cores."""
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    connections: int = 0
    bundle_count: int = 0
    topics: int = 0
    producers: int = 0
    consumers: int = 0
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    draining: bool = False
    bundles: tuple[BundleLoad, ...] = ()

    @property
    def cost(self) -> float:
        """The work of serving all bundles, like `BundleLoad.cost`."""
        rate = self.msg_rate_in + self.msg_rate_out
        return rate * MESSAGE_COST_BYTES + self.msg_throughput_in + self.msg_throughput_out

    @property
    def memory(self) -> float:
        """The used fraction of the broker's memory limit; 0 if the limit is unknown."""
        return self.memory_bytes / self.memory_limit_bytes if self.memory_limit_bytes else 0.0


class Move(msgspec.Struct, rename="camel", frozen=True, tag="move", tag_field="decision"):
    """A decision: move a bundle from one broker to another."""

    bundle: str
    source: str
    target: str
    why: str
    numbers: dict[str, float] = {}


class Split(msgspec.Struct, rename="camel", frozen=True, tag="split", tag_field="decision"):
    """A decision: split a bundle; its owner keeps the parts."""

    bundle: str
    source: str
    algorithm: str
    why: str
    numbers: dict[str, float] = {}


class Nothing(msgspec.Struct, rename="camel", frozen=True, tag="nothing", tag_field="decision"):
    """A decision to do nothing, with the reason."""

    why: str
    numbers: dict[str, float] = {}


Decision = Move | Split | Nothing


class Round(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """An entry of the log: the loads that the leader saw, and its decisions."""

    sequence: int
    at_ms: int
    leader: str
    loads: dict[str, float]
    decisions: tuple[Decision, ...]
    results: tuple[str, ...] = ()
    """Results of orders from earlier rounds."""


OrderState = Literal["issued", "done", "failed"]


class Order(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The leader's instruction to a broker about one of its bundles, and later the result."""

    kind: Literal["unload", "split"]
    bundle: str
    issued_ms: int
    destination: str | None = None
    algorithm: str = ""
    unload_parts: bool = False
    state: OrderState = "issued"
    result: str = ""


class LeaderRecord(msgspec.Struct, rename="camel", frozen=True):
    """The value of the leader's key. `attempt` is unique, so the writer recognizes its own."""

    broker_id: str
    service_url: str
    attempt: str


decode_report = RecordType(LoadReport, "load report").decode
decode_round = RecordType(Round, "round of balancing").decode
decode_order = RecordType(Order, "order").decode
decode_leader = RecordType(LeaderRecord, "leader").decode


def order_key(broker_id: str, bundle: str) -> str:
    """Returns the key of a broker's order about a bundle."""
    return f"{ORDERS_PREFIX}{broker_id}/{bundle}"


def namespace_of(bundle: str) -> str:
    """Returns the namespace of a bundle, `tenant/namespace`."""
    return bundle.rpartition("/")[0]
