"""The publish budget: which connections are paused and resumed."""

import pytest

from magnetar.broker.session.budget import (
    BROKER_PENDING_BYTES_HIGH,
    BROKER_PENDING_BYTES_LOW,
    CONNECTION_PENDING_BYTES_HIGH,
    CONNECTION_PENDING_BYTES_LOW,
    PublishBudget,
)

MIB = 1 << 20


class Connection:
    """Keeps its own count, as a link does."""

    def __init__(self, budget: PublishBudget) -> None:
        self.budget = budget
        self.pending_bytes = 0
        self.paused = False

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def publishes(self, size_bytes: int) -> None:
        self.pending_bytes += size_bytes
        self.budget.add(self, size_bytes)

    def receipted(self, size_bytes: int) -> None:
        self.pending_bytes -= size_bytes
        self.budget.subtract(size_bytes)


@pytest.fixture
def budget() -> PublishBudget:
    return PublishBudget()


def test_a_connection_is_paused_above_its_mark_and_resumed_below_the_low_one(
    budget: PublishBudget,
) -> None:
    connection, other = Connection(budget), Connection(budget)
    connection.publishes(CONNECTION_PENDING_BYTES_HIGH)
    assert not connection.paused
    connection.publishes(1)
    other.publishes(1)
    assert connection.paused
    assert not other.paused
    assert len(budget._paused) == 1
    connection.receipted(CONNECTION_PENDING_BYTES_HIGH - CONNECTION_PENDING_BYTES_LOW)
    assert connection.paused
    connection.receipted(1)
    assert not connection.paused


def test_above_the_brokers_mark_all_that_publish_are_paused(budget: PublishBudget) -> None:
    share = CONNECTION_PENDING_BYTES_HIGH
    many = [Connection(budget) for _ in range(BROKER_PENDING_BYTES_HIGH // share)]
    for connection in many:
        connection.publishes(share)
    assert len(budget._paused) == 0
    small, idle = Connection(budget), Connection(budget)
    small.publishes(1)
    assert small.paused
    assert not idle.paused
    freed = 0
    for connection in many:
        connection.receipted(share)
        freed += share
        below = BROKER_PENDING_BYTES_HIGH + 1 - freed <= BROKER_PENDING_BYTES_LOW
        assert small.paused == (not below)


def test_one_paused_for_its_own_bytes_does_not_wait_for_others(budget: PublishBudget) -> None:
    """The others stay between the broker's marks for ever, and never above the upper one."""
    connection = Connection(budget)
    connection.publishes(CONNECTION_PENDING_BYTES_HIGH + 1)
    assert connection.paused
    connection.receipted(CONNECTION_PENDING_BYTES_HIGH - CONNECTION_PENDING_BYTES_LOW)
    for _ in range(8):
        Connection(budget).publishes(BROKER_PENDING_BYTES_LOW // 8 + 1)
    assert BROKER_PENDING_BYTES_LOW < budget.pending_bytes <= BROKER_PENDING_BYTES_HIGH
    connection.receipted(connection.pending_bytes)
    assert budget.pending_bytes > BROKER_PENDING_BYTES_LOW
    assert not connection.paused


def test_above_the_brokers_mark_no_connection_resumes(budget: PublishBudget) -> None:
    """Else those that publish a little would keep the others waiting."""
    big = Connection(budget)
    big.publishes(BROKER_PENDING_BYTES_HIGH + 1)
    big.receipted(BROKER_PENDING_BYTES_HIGH - BROKER_PENDING_BYTES_LOW - MIB)
    other = Connection(budget)
    other.publishes(1)
    assert other.paused
    big.receipted(big.pending_bytes)
    assert not big.paused
    assert not other.paused


def test_a_lost_connection_is_not_resumed_but_its_bytes_count(budget: PublishBudget) -> None:
    connection = Connection(budget)
    connection.publishes(CONNECTION_PENDING_BYTES_HIGH + 1)
    budget.forget(connection)
    assert len(budget._paused) == 0
    assert budget.pending_bytes == CONNECTION_PENDING_BYTES_HIGH + 1
    connection.receipted(CONNECTION_PENDING_BYTES_HIGH + 1)
    assert connection.paused
    assert budget.pending_bytes == 0


def test_the_broker_reads_again_at_its_low_mark(budget: PublishBudget) -> None:
    connections = [Connection(budget) for _ in range(8)]
    share = BROKER_PENDING_BYTES_HIGH // 8
    for each in connections:
        each.publishes(share)
    assert not any(each.paused for each in connections)
    connections[0].publishes(1)
    assert connections[0].paused
    over = BROKER_PENDING_BYTES_HIGH + 1 - BROKER_PENDING_BYTES_LOW
    connections[1].receipted(share)
    connections[2].receipted(share)
    rest = over - 2 * share
    connections[3].receipted(rest - 1)
    assert (budget.pending_bytes, connections[0].paused) == (BROKER_PENDING_BYTES_LOW + 1, True)
    connections[3].receipted(1)
    assert not connections[0].paused


def test_a_connection_that_is_paused_already_is_paused_once(budget: PublishBudget) -> None:
    """What it sent before is still read: its link counts reasons, and each has to end."""
    connection = Connection(budget)
    for _ in range(3):
        connection.publishes(CONNECTION_PENDING_BYTES_HIGH)
    assert connection.paused
    connection.receipted(connection.pending_bytes)
    assert not connection.paused
