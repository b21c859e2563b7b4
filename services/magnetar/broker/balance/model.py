"""What brokers report, what the leader decides, and what is kept of both: small JSON documents.

    /load-reports/{broker}             a LoadReport, under the broker's lease
    /balance/leader                    who leads, under its lease
    /balance/orders/{broker}/{bundle}  an Order, with its result once it is carried out
    /balance/log/{slot}                a Round: what the leader decided, and the numbers

A bundle is named `tenant/namespace/0x00000000_0x40000000` throughout. Loads are fractions of one
core: a broker is one event loop, which is full when its core is. Times are milliseconds since 1970,
because they are compared by whichever broker leads.
"""

from typing import Final, Literal, TypeVar

import msgspec

REPORTS_PREFIX: Final = "/load-reports/"
LEADER_KEY: Final = "/balance/leader"
ORDERS_PREFIX: Final = "/balance/orders/"
LOG_PREFIX: Final = "/balance/log/"

MESSAGE_COST_BYTES: Final = 1_024
"""A message costs a broker about as much as this many bytes more: what a bundle's share of the
load is reckoned with. Only the proportion of bundles to each other matters."""

T = TypeVar("T")


class BundleLoad(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What one bundle gave its owner to do: rates per second, and what is there now."""

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
        return self.msg_rate_in + self.msg_rate_out

    @property
    def throughput(self) -> float:
        """Bytes per second, in and out."""
        return self.msg_throughput_in + self.msg_throughput_out

    @property
    def sessions(self) -> int:
        return self.producers + self.consumers

    @property
    def cost(self) -> float:
        """The work of serving it, in bytes per second as it were."""
        return self.msg_rate * MESSAGE_COST_BYTES + self.throughput


class LoadReport(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """What a broker says of itself. `bundles` has the busiest ones; the counts are of all."""

    broker_id: str
    started_ms: int
    updated_ms: int
    cpu: float = 0.0
    """Of one core, over the time since the report before; above 1 where threads work beside."""
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
        """As `BundleLoad.cost`, of all bundles."""
        rate = self.msg_rate_in + self.msg_rate_out
        return rate * MESSAGE_COST_BYTES + self.msg_throughput_in + self.msg_throughput_out

    @property
    def memory(self) -> float:
        """Of what the broker may have, 0 where that is not known."""
        return self.memory_bytes / self.memory_limit_bytes if self.memory_limit_bytes else 0.0


class Move(msgspec.Struct, rename="camel", frozen=True, tag="move", tag_field="decision"):
    """A bundle goes from one broker to another."""

    bundle: str
    source: str
    target: str
    why: str
    numbers: dict[str, float] = {}


class Split(msgspec.Struct, rename="camel", frozen=True, tag="split", tag_field="decision"):
    """A bundle is cut where its owner is."""

    bundle: str
    source: str
    algorithm: str
    why: str
    numbers: dict[str, float] = {}


class Nothing(msgspec.Struct, rename="camel", frozen=True, tag="nothing", tag_field="decision"):
    """Nothing was done, and why."""

    why: str
    numbers: dict[str, float] = {}


Decision = Move | Split | Nothing


class Round(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One line of the log: the loads that the leader saw, and what it made of them."""

    sequence: int
    at_ms: int
    leader: str
    loads: dict[str, float]
    decisions: tuple[Decision, ...]
    results: tuple[str, ...] = ()
    """What came of orders of earlier rounds."""


OrderState = Literal["issued", "done", "failed"]


class Order(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """What the leader wants a broker to do with a bundle of its own, and what came of it."""

    kind: Literal["unload", "split"]
    bundle: str
    issued_ms: int
    destination: str | None = None
    algorithm: str = ""
    unload_parts: bool = False
    state: OrderState = "issued"
    result: str = ""


def encoded(document: msgspec.Struct) -> bytes:
    return msgspec.json.encode(document)


def decoded(data: bytes, kind: type[T]) -> T:
    """Raises msgspec's errors where the text is no such document."""
    return msgspec.json.decode(data, type=kind)


def order_key(broker_id: str, bundle: str) -> str:
    return f"{ORDERS_PREFIX}{broker_id}/{bundle}"


def namespace_of(bundle: str) -> str:
    """`tenant/namespace` of a bundle."""
    return bundle.rpartition("/")[0]
