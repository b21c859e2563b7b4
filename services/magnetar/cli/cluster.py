"""`magnetar cluster`: runs etcd, bookies and brokers as processes on this machine.

    up              creates the cluster if there is none, starts its members, and shows them until
                    Ctrl-C, which stops all; with --detach it returns once all are ready
    status          prints the state of the members once
    add ROLE        adds a bookie, a broker or an autorecovery process
    remove NAME     drains a bookie first; a broker hands its topics over
    kill, pause, resume, restart NAME
    logs NAME       prints the member's log
    down            stops all members; the data stays

All commands but `up` work on the cluster of --dir, from any terminal.
"""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from magnetar.cli.first_message import first_message, magnetar_command
from magnetar.core.errors import MagnetarError, PreconditionFailed

if TYPE_CHECKING:
    from magnetar.cluster.local.cluster import LocalCluster

DIRECTORY_DEFAULT: Final = Path("data-cluster")
REFRESH_S: Final = 1.0
FOLLOW_S: Final = 0.2


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `cluster` and its actions."""
    parser = subparsers.add_parser(
        "cluster",
        help="run etcd, bookies and brokers on this machine, and change them",
        description=__doc__.partition("\n")[0] if __doc__ else None,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--dir", type=Path, default=DIRECTORY_DEFAULT, help="the cluster's directory (%(default)s)"
    )
    _add_up(actions, shared)
    status = actions.add_parser("status", parents=[shared], help="print the state of the members")
    status.add_argument("--json", action="store_true", help="print one JSON document")
    add = actions.add_parser("add", parents=[shared], help="add a member")
    add.add_argument("role", choices=("bookie", "broker", "autorecovery"))
    remove = actions.add_parser(
        "remove", parents=[shared], help="remove a member: a bookie is drained first"
    )
    remove.add_argument("name", metavar="NAME")
    remove.add_argument(
        "--force",
        action="store_true",
        help="do not drain a bookie: autorecovery re-replicates its entries later",
    )
    for name, text in _SIMPLE.items():
        action = actions.add_parser(name, parents=[shared], help=text)
        action.add_argument("name", metavar="NAME")
    logs = actions.add_parser("logs", parents=[shared], help="print a member's log")
    logs.add_argument("name", metavar="NAME")
    logs.add_argument("-f", "--follow", action="store_true", help="continue until Ctrl-C")
    actions.add_parser("down", parents=[shared], help="stop all members; their data stays")


_SIMPLE: Final = {
    "kill": "kill -9 a member",
    "pause": "freeze a member with SIGSTOP: its connections stay open",
    "resume": "resume a paused member with SIGCONT",
    "restart": "start a member; if it runs, stop it first",
}


def _add_up(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", shared: argparse.ArgumentParser
) -> None:
    up = actions.add_parser("up", parents=[shared], help="create and start the cluster")
    up.add_argument("--bookies", type=int, default=3, help="of a new cluster (%(default)s)")
    up.add_argument("--brokers", type=int, default=2, help="of a new cluster (%(default)s)")
    up.add_argument("--etcd", type=int, default=1, help="of a new cluster (%(default)s)")
    up.add_argument(
        "--host", default="127.0.0.1", help="address that a new cluster listens on (%(default)s)"
    )
    up.add_argument(
        "--base",
        type=_base,
        default="standard",
        help="ports of a new cluster: `standard` (6650, 8080, 3181, 2379 and on), `free`, "
        "or the first of about 150 ports (%(default)s)",
    )
    up.add_argument("--config", type=Path, help="settings for all members of a new cluster")
    up.add_argument("--detach", action="store_true", help="return once all are ready")


def _base(text: str) -> str:
    if text in ("standard", "free") or (text.isdigit() and 1024 <= int(text) <= 65_000):
        return text
    raise argparse.ArgumentTypeError("`standard`, `free` or a port from 1024 to 65000")


def run(args: argparse.Namespace) -> int:
    """Runs the action; returns the exit code."""
    from magnetar.cluster.local.cluster import LocalCluster
    from magnetar.cluster.local.members import Role

    try:
        if args.action == "up":
            return _up(args)
        cluster = LocalCluster(args.dir.absolute())
        match args.action:
            case "status":
                return _status(cluster, as_json=args.json)
            case "add":
                member = cluster.add(Role(args.role))
                cluster.wait_ready([member.name])
                print(f"{member.name} is ready at {member.address}")
            case "remove":
                cluster.remove(args.name, force=args.force, report=print)
                print(f"{args.name} is removed; its data, if any, is in {args.dir / args.name}")
            case "restart":
                cluster.restart(args.name)
                cluster.wait_ready([args.name])
                print(f"{args.name} is ready")
            case "logs":
                return _logs(cluster, args.name, follow=args.follow)
            case "down":
                cluster.down(print)
            case action:
                method: Callable[[str], None] = getattr(cluster, action)
                method(args.name)
                print(f"{args.name}: {action} done")
    except MagnetarError as error:
        print(f"magnetar: {error}", file=sys.stderr)
        return 1
    return 0


def _up(args: argparse.Namespace) -> int:
    from magnetar.cluster.local import config, etcd, state
    from magnetar.cluster.local.cluster import LocalCluster

    directory: Path = args.dir.absolute()
    etcd.program()  # raises if there is no etcd, before anything is created
    given = None if args.config is None else config.read_config(args.config)
    if (directory / state.STATE_FILE).exists():
        cluster = LocalCluster(directory)
        if given is not None and cluster.settings() != given.settings:
            raise PreconditionFailed(
                f"--config is for a new cluster, and there is one in {directory}: change "
                f"{directory / state.CONFIG_FILE} and restart the members"
            )
    else:
        cluster = LocalCluster.create(
            directory,
            bookies=args.bookies,
            brokers=args.brokers,
            etcds=args.etcd,
            base=args.base,
            host=args.host,
            name=config.NAME_DEFAULT if given is None else given.name,
            settings=None if given is None else given.settings,
        )
    for origin in () if given is None else given.overridden:
        print(f"magnetar: {origin} has no effect: each member has its own", file=sys.stderr)
    stopping = threading.Event()
    if not args.detach:
        _stop_on_signals(stopping)
    started = time.monotonic()
    try:
        cluster.up(print)
    except (MagnetarError, KeyboardInterrupt):
        if not args.detach:
            cluster.down(print)
        raise
    print(banner(cluster, time.monotonic() - started), flush=True)
    if not args.detach:
        from magnetar.cli.cluster_view import show_until

        show_until(cluster, stopping, REFRESH_S)
        cluster.down(print)
    return 0


def _stop_on_signals(stopping: threading.Event) -> None:
    """The first signal sets `stopping`; the second ends this command and leaves the members."""

    def on_signal(number: int, _: FrameType | None) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


def banner(cluster: "LocalCluster", took_s: float) -> str:
    """The addresses of the cluster, and commands to try next."""
    url = cluster.service_url
    where = f" --dir {_shown(cluster.directory)}"
    magnetar = magnetar_command()
    return f"""\
the cluster is ready after {took_s:.1f} s
  clients   {url}
  admin     {", ".join(cluster.http_urls)}
  metadata  {cluster.metadata_url}
  data      {cluster.directory}

Try next, in another terminal, in the same folder:
  {first_message(url)}
  {magnetar} cluster add bookie{where}
  {magnetar} cluster kill broker-1{where}
  {magnetar} cluster status{where}
Ctrl+C stops the cluster.
"""


def _shown(directory: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(directory.relative_to(Path.cwd()))
    return str(directory)


def _status(cluster: "LocalCluster", *, as_json: bool) -> int:
    from magnetar.cluster.local.status import Observer

    rows = Observer(cluster).observe_with_cpu()
    if as_json:
        import msgspec

        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
        sys.stdout.buffer.flush()
    else:
        from magnetar.cli.cluster_view import print_rows

        print_rows(rows)
    return 0 if all(row.state == "ready" for row in rows) else 1


def _logs(cluster: "LocalCluster", name: str, *, follow: bool) -> int:
    cluster.member(name)
    path = cluster.log(name)
    with contextlib.suppress(KeyboardInterrupt), path.open("rb") as file:
        while True:
            while piece := file.read(1 << 16):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            if not follow:
                break
            time.sleep(FOLLOW_S)
    return 0
