"""The lines about clients that break the protocol are bounded for each network of clients."""

import logging

import pytest

from magnetar.core.log import get_logger
from magnetar.observe.peer_log import LINES_PER_NETWORK_MAX, PeerLog


def test_one_network_gets_a_share_of_the_lines_and_leaves_the_others_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    peers = PeerLog(get_logger("magnetar.test"))
    for number in range(2 * LINES_PER_NETWORK_MAX):
        peers.info("broken", f"2001:db8::{number:x}", peer="one")
    assert len(caplog.records) == LINES_PER_NETWORK_MAX
    peers.info("broken", "2001:db8:0:1::1", peer="another")
    peers.info("broken", "192.0.2.1", peer="a third")
    assert len(caplog.records) == LINES_PER_NETWORK_MAX + 2
