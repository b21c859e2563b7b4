"""Every line of the table of `pulsar-admin`: our answers beside those recorded of Pulsar 4.2.4."""

from pathlib import Path

import pytest
from tests.support.server_process import ServerProcess

from .admin_table import table
from .admin_table.runner import ENVIRONMENT, answers, catalog
from .java_programs import JAVA_TEST_TIMEOUT_S, JavaPrograms
from .support import ServerAddress

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S)


def test_answers_are_those_of_pulsar_or_listed(java: JavaPrograms, tmp_path: Path) -> None:
    """On a server of its own: the lines start from an empty one."""
    with ServerProcess(tmp_path, environment=ENVIRONMENT) as process:
        address = ServerAddress(process.service_url, process.http_url)
        ours = answers(java, address, tmp_path)
    recorded = table.recorded()
    assert [answer.command for answer in ours] == [answer.command for answer in recorded]
    assert table.mismatches(ours, recorded) == []
    assert table.needless(ours, recorded) == []


def test_the_catalog_is_that_of_the_tool(java: JavaPrograms, tmp_path: Path) -> None:
    assert catalog(java, tmp_path / "catalog.log") == table.catalog()
