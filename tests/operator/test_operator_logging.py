"""What of libraries' own lines is in the operator's log."""

import logging
from collections.abc import Iterator

import httpx
import pytest

from magnetar_operator.main import QUIET_LIBRARIES, set_up_logging


@pytest.fixture(autouse=True)
def _levels_as_they_were() -> Iterator[None]:
    levels = [(logger := logging.getLogger(name), logger.level) for name in QUIET_LIBRARIES]
    yield
    for logger, level in levels:
        logger.setLevel(level)


def test_requests_of_http_clients_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for library in QUIET_LIBRARIES:
        logging.getLogger(library).setLevel(logging.NOTSET)
    set_up_logging()
    transport = httpx.MockTransport(lambda _request: httpx.Response(204))
    with httpx.Client(transport=transport) as client:
        client.get("http://broker-2/admin/v2/brokers/health")
    for library in QUIET_LIBRARIES:
        logging.getLogger(library).info("a request")
    logging.getLogger("magnetar_operator.engine.queue").info("ours")
    assert [record.message for record in caplog.records] == ["ours"]
