"""No state of a subscription has an empty answer, or makes the judgment fail."""

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.dispatch.facts import HashFacts
from magnetar.broker.explain.judge.delivery import judge_subscription, stalled
from magnetar.broker.explain.state import (
    BROKER_CAP,
    SHARED_RATE,
    ConsumerState,
    FilterState,
    PolicyValue,
    RateState,
    ReadFailureState,
    RecoveryState,
    SubscriptionState,
    TxnState,
)
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic

TIME_MAX = 2**63
LEVELS = st.sampled_from(["topic", "namespace", "broker"])
SMALL = st.integers(0, 5)
NAMES = st.sampled_from(["a", "b", "c"])

positions = st.builds(Position, st.integers(0, 3), st.integers(-1, 9))
consumers = st.builds(
    ConsumerState,
    name=NAMES,
    permits=st.integers(-3, 3),
    unacked=SMALL,
    blocked=st.booleans(),
    writable=st.booleans(),
    active=st.booleans(),
    last_consumed_ms=st.integers(0, 20_000),
    pending_entries=SMALL,
    oldest_pending=st.none() | positions,
)
hashes = st.builds(
    HashFacts,
    sticky_hash=SMALL,
    head=st.none() | positions,
    waiting=SMALL,
    owner=st.none() | NAMES,
    holder=st.none() | NAMES,
)
filters = st.builds(
    FilterState,
    names=st.just(("properties",)),
    policy=st.builds(
        PolicyValue, name=st.just("entry_filters"), value=st.none(), level=st.just("namespace")
    ),
    accepted=SMALL,
    rejected=SMALL,
)
recoveries = st.builds(
    RecoveryState,
    failures=SMALL,
    error=st.just("no answer"),
    read=st.none() | st.builds(ReadFailureState, positions, st.just("no answer"), SMALL),
)
transactions = st.builds(
    TxnState,
    most=SMALL,
    least=SMALL,
    first=st.none() | positions,
    acked_entries=SMALL,
    opened_ms=st.integers(0, TIME_MAX),
    deadline_ms=st.integers(0, TIME_MAX),
    state=st.sampled_from(["", "OPEN", "COMMITTED", "ended"]),
    recovery=st.none() | recoveries,
)
caps = st.none() | st.builds(
    PolicyValue,
    name=st.sampled_from(["max_unacked_per_consumer", BROKER_CAP]),
    value=SMALL,
    level=LEVELS,
    overridden=st.none() | SMALL,
)
rates = st.none() | st.builds(
    RateState,
    policy=st.builds(
        PolicyValue,
        name=st.sampled_from(["dispatch_rate", "subscription_dispatch_rate", SHARED_RATE]),
        value=st.none(),
        level=LEVELS,
    ),
    out_of=st.just("bytes"),
)
states = st.builds(
    SubscriptionState,
    topic=st.just(parse_topic("t")),
    name=st.just("s"),
    now_ms=st.integers(0, 30_000),
    serving=st.booleans(),
    type=st.sampled_from(["None", "Exclusive", "Failover", "Shared", "Key_Shared"]),
    backlog=SMALL,
    mark_delete=positions,
    initial=st.none() | positions,
    next_unacked=st.none() | positions,
    read_position=positions,
    last_confirmed=positions,
    last_visible=positions,
    horizon=st.none() | positions,
    stored_before_creation=SMALL,
    consumers=st.lists(consumers, max_size=3).map(tuple),
    switching=st.booleans(),
    suspended=st.booleans(),
    buffered=SMALL,
    reading=st.booleans(),
    turn_due=st.booleans(),
    waiting=SMALL,
    parked=SMALL,
    delivered=SMALL,
    unread=SMALL,
    unacked=SMALL,
    blocked=st.booleans(),
    consumer_cap=caps,
    subscription_cap=caps,
    hashes=st.lists(hashes, max_size=2).map(tuple),
    look_ahead_max=SMALL,
    rate=rates,
    transactions=st.lists(transactions, max_size=2).map(tuple),
    ack_transactions=st.lists(transactions, max_size=2).map(tuple),
    filters=st.none() | filters,
    recovery=st.none() | recoveries,
)


@given(states)
def test_every_state_has_an_answer(state: SubscriptionState) -> None:
    findings = judge_subscription(state)
    assert findings
    assert all(finding.code and finding.summary for finding in findings)
    codes = [finding.code for finding in findings]
    if state.serving and not state.suspended and state.backlog:
        assert (codes[0] == "no_consumer") is (not state.consumers)
        if state.consumers:
            assert codes[0] not in ("caught_up", "terminated")
    if "dispatch_stall" in codes:
        assert stalled(state)
