"""Public Grafana dashboards for Pulsar and our own, evaluated by a real Prometheus.

One cluster under load serves all tests of the module. Prometheus scrapes it every second, so that
rates have their two samples soon.
"""

import re
import time
from collections.abc import Iterator
from typing import Final

import pytest
from tests.chart.test_metric_names import CHART, expressions

from .dashboards import table
from .dashboards.panels import panels, substituted
from .dashboards.prometheus import Prometheus, check_rules
from .dashboards.reasons import REASONS, Reason, reason_of
from .dashboards.rig import CLUSTER, scraped, variables

pytestmark = pytest.mark.timeout(300)  # the first test starts a cluster

RULES: Final = CHART / "alerts" / "magnetar.rules.yaml"
DATA_WITHIN_S: Final = 90.0
POLL_S: Final = 0.5


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with scraped(tmp_path_factory.mktemp("dashboards"), RULES) as started:
        yield started


def queries() -> dict[str, Reason | None]:
    """The queries of all panels as Grafana sends them, each with the reason if it has no data."""
    return {
        substituted(text, variables(panel.board)): reason_of(panel.board, text)
        for panel in panels()
        for text in panel.expressions
    }


def test_every_panel_has_data_or_a_reason(prometheus: Prometheus) -> None:
    reasons = queries()
    missing = [query for query, reason in reasons.items() if reason is None]
    deadline = time.monotonic() + DATA_WITHIN_S
    while missing := [query for query in missing if not prometheus.has_data(query)]:
        assert time.monotonic() < deadline, "no data:\n" + "\n".join(missing)
        time.sleep(POLL_S)
    empty = [query for query, reason in reasons.items() if reason and not reason.conditional]
    assert [query for query in empty if prometheus.has_data(query)] == []
    for query in reasons:
        prometheus.values(query)  # raises for a query that Prometheus refuses


def test_every_reason_is_needed() -> None:
    used = set(queries().values())
    assert [reason.text for reason in REASONS if reason not in used] == []


def test_our_dashboards_are_accepted(prometheus: Prometheus) -> None:
    ours = [(where, text) for where, text, _ in expressions()]
    for where, text in ours:
        query = re.sub(r"\[\$__\w+\]", "[30s]", text)
        query = substituted(query.replace('="$cluster"', f'="{CLUSTER}"'), EveryValue())
        try:
            prometheus.values(query)
        except ValueError as error:
            raise AssertionError(f"{where}: {error}") from error
    assert len(ours) > 100


def test_our_alerts_are_accepted(prometheus: Prometheus) -> None:
    assert "SUCCESS" in check_rules(RULES)
    rules = prometheus.rules()
    assert rules
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []


class EveryValue(dict[str, str]):
    """A board's variables with `All` chosen."""

    def __missing__(self, name: str) -> str:
        return ".*"


def test_the_page_is_fresh() -> None:
    assert table.PAGE.read_text() == table.page(), "run `python -m tests.interop.dashboards page`"


def test_variables_are_substituted() -> None:
    assert substituted('a{b=~"$c"}[5m]', {"c": "x.*"}) == 'a{b=~"x.*"}[5m]'
    assert substituted('a{b=~"$$c"}', {"c": "x"}) == 'a{b=~"$x"}'
    with pytest.raises(KeyError):
        substituted("a{b=~$unknown}", {})


def test_the_list_of_panels() -> None:
    found = panels()
    assert len({panel.board for panel in found}) == 19
    assert all(panel.title and panel.expressions for panel in found)
    assert len(found) > 380
