"""`python -m tests.interop.admin_table`: the commands of `pulsar-admin` beside Pulsar's answers.

compare                      ours against the recorded answers; exit code 1 if one differs
record SERVICE_URL HTTP_URL  runs them on a fresh Pulsar and records its answers; its settings are
                             those of its standalone.conf, with transactionCoordinatorEnabled=true
                             and backlogQuotaDefaultLimitGB=-1, which is Magnetar's default
page                         writes docs/run/pulsar-admin.md from what is recorded
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.interop.java_programs import prepare
from tests.interop.support import ServerAddress
from tests.support.server_process import ServerProcess

from . import table
from .runner import ENVIRONMENT, answers, catalog


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.admin_table")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("compare", help="run all lines on a standalone of ours")
    actions.add_parser("page", help=f"write {table.PAGE.relative_to(table.ROOT)}")
    recording = actions.add_parser("record", help="run all lines on a fresh Pulsar")
    recording.add_argument("service_url")
    recording.add_argument("http_url")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="admin-table-") as directory:
        if arguments.action == "compare":
            return _compare(Path(directory))
        if arguments.action == "record":
            java = prepare()
            table.record_catalog(catalog(java, Path(directory) / "catalog.log"))
            server = ServerAddress(arguments.service_url, arguments.http_url)
            table.record(answers(java, server, Path(directory)))
    table.PAGE.write_text(table.page())
    return 0


def _compare(directory: Path) -> int:
    with ServerProcess(directory, environment=ENVIRONMENT) as process:
        server = ServerAddress(process.service_url, process.http_url)
        ours = answers(prepare(), server, directory)
    recorded = table.recorded()
    found = table.mismatches(ours, recorded)
    for our, pulsar in found:
        print(f"{our.command}\n  ours:   {our}\n  Pulsar: {pulsar}")
    needless = table.needless(ours, recorded)
    for command in needless:
        print(f"{command}\n  is listed as a difference, and there is none")
    print(f"{len(ours)} lines, {len(found)} differ from what is recorded or listed")
    return 1 if found or needless else 0


if __name__ == "__main__":
    sys.exit(main())
