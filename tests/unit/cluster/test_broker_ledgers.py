"""A broker's settings as those of its ledgers."""

import math

from magnetar.cluster.broker_ledgers import ledger_settings
from magnetar.settings.cluster_broker import BrokerProcessSettings
from magnetar.settings.field import compose


def test_a_delay_of_0_reads_another_copy_only_after_an_error() -> None:
    # Pulsar's own broker.conf has it.
    never = compose(BrokerProcessSettings, speculative_read_delay_ms=0)
    assert ledger_settings(never).speculative_read_delay_s == math.inf
    assert ledger_settings(never).more_answers_s < math.inf
    assert ledger_settings(BrokerProcessSettings()).speculative_read_delay_s == 0.25


def test_the_timeouts_of_ledgers_are_in_seconds() -> None:
    given = compose(BrokerProcessSettings, add_timeout_ms=1_500, read_timeout_s=7)
    settings = ledger_settings(given)
    assert (settings.add_timeout_s, settings.read_timeout_s) == (1.5, 7.0)
