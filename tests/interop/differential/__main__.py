"""Records scenarios on a Pulsar, compares ours with the records, shows the steps of one.

python -m tests.interop.differential record pulsar://127.0.0.1:6650 http://127.0.0.1:8080
python -m tests.interop.differential compare [SEED…]
python -m tests.interop.differential show SEED
"""

import argparse
import sys
import tempfile
from pathlib import Path

import httpx
from tests.interop.support import ServerAddress
from tests.support.server_process import ServerProcess

from . import golden
from .compared import compared
from .runner import Outcome, outcomes
from .scenarios import COUNT, TRANSACTIONAL, scenario
from .steps import Scenario

RUNS = 3
"""Observations are recorded if two successive runs on Pulsar agree; so many runs are tried."""
WORKERS = 20
RECORDED_VERSION = "4.2.4"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.differential")
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record", help="record what is missing or has other steps now")
    recording.add_argument("service_url")
    recording.add_argument("http_url")
    comparing = actions.add_parser("compare", help="run what is recorded on a standalone of ours")
    showing = actions.add_parser("show", help="print steps and recorded observations")
    for each in (recording, comparing, showing):
        each.add_argument("seeds", nargs="*", type=int, default=[])
    arguments = parser.parse_args()
    recorded = arguments.action == "compare"
    seeds = arguments.seeds or list(golden.recorded() if recorded else range(COUNT))
    with tempfile.TemporaryDirectory(prefix="differential-") as directory:
        if arguments.action == "record":
            server = ServerAddress(arguments.service_url, arguments.http_url)
            return _record(server, seeds, Path(directory))
        if arguments.action == "compare":
            return _compare(seeds, Path(directory), complete=not arguments.seeds)
    for seed in seeds:
        _show(seed)
    return 0


def _record(server: ServerAddress, seeds: list[int], directory: Path) -> int:
    version = httpx.get(f"{server.http_url}/admin/v2/brokers/version", trust_env=False).text
    if version != RECORDED_VERSION:
        raise SystemExit(f"{server.http_url} has the version {version}, not {RECORDED_VERSION}")
    seeds = _recordable(server, seeds)
    rows = {seed: row for seed, row in golden.recorded().items() if seed < COUNT}
    wanted = [
        each for each in map(scenario, seeds) if rows.get(each.seed, ("",))[0] != each.digest()
    ]
    for each in wanted:
        rows.pop(each.seed, None)
    last: dict[int, Outcome] = {}
    previous: dict[int, Outcome] = {}
    for _ in range(RUNS):
        left = [each for each in wanted if each.seed not in rows]
        previous, last = last, outcomes(server, left, directory / "client.log", workers=WORKERS)
        for each in left:
            found = last[each.seed]
            if isinstance(found, list) and found == previous.get(each.seed):
                rows[each.seed] = (each.digest(), found)
        golden.record(rows)
        print(f"{sum(each.seed in rows for each in wanted)} of {len(wanted)}", flush=True)
    unstable = [each for each in wanted if each.seed not in rows]
    for each in unstable:
        print(f"seed {each.seed} ({each.theme}) is not the same in two runs:")
        _explain(each, previous[each.seed], last[each.seed])
    print(f"{len(wanted)} recorded anew, {len(unstable)} of them not stable; {len(rows)} in all")
    return 1 if unstable else 0


def _recordable(server: ServerAddress, seeds: list[int]) -> list[int]:
    """Those that the server is for: transactions show in headers and figures of other topics."""
    path = f"{server.http_url}/admin/v3/transactions/coordinators"
    transactions = httpx.get(path, trust_env=False).status_code == httpx.codes.OK
    return [seed for seed in seeds if (seed >= TRANSACTIONAL) is transactions]


def _explain(each: Scenario, first: Outcome, second: Outcome) -> None:
    if isinstance(first, list) and isinstance(second, list):
        index = next(n for n, found in enumerate(first) if found != second[n])
        print(golden.Mismatch(each, index, first[index], second[index]))
    else:
        print(f"  {first!r:.500}\n  {second!r:.500}")


def _compare(seeds: list[int], directory: Path, *, complete: bool) -> int:
    with ServerProcess(directory, environment={"MAGNETAR_TRANSACTIONS": "true"}) as process:
        server = ServerAddress(process.service_url, process.http_url)
        found, stale = compared(server, seeds, directory / "client.log")
    for each in found:
        print(each)
    for row in stale if complete else []:
        print(f"listed, but not seen: {row.reason}")
    print(f"{len(seeds)} scenarios, {len(found)} differ")
    return 1 if found or (complete and stale) else 0


def _show(seed: int) -> None:
    each, row = scenario(seed), golden.recorded().get(seed)
    print(f"seed {seed}: {each.theme}")
    for index, one in enumerate(each.steps):
        print(f"{index:3} {golden.dumped(one.document())}")
        if row and row[0] == each.digest():
            print(f"      {golden.dumped(row[1][index])}")


if __name__ == "__main__":
    sys.exit(main())
