"""Runs jobs: arguments, context, summary, signals and exit codes are common to all of them.

    magnetar job KIND ARGUMENT...

A kind is a package beside this module, listed in KINDS, with `DESCRIPTION`, `add_arguments(parser)`
and `run(job: JobContext) -> Summary`; only `run` makes expensive imports.

Exit codes: 0 done, or nothing to do; 1 failed; 2 bad arguments; 3 partly done; 130 and 143
interrupted by Ctrl-C and SIGTERM, after stopping Spark.
"""

import argparse
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from magnetar.core.clock import Clock, SystemClock
from magnetar.core.errors import MagnetarError, PreconditionFailed
from magnetar.jobs.event_loop import cancel_all
from magnetar.jobs.log.topics import Selection
from magnetar.metadata.store_url import ROOT_DEFAULT
from magnetar_spark.jobs import progress
from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.session import Sessions, prepare
from magnetar_spark.jobs.summary import Summary
from magnetar_spark.log.settings import LogSettings

KINDS: Final = {
    "offload": "write closed ledgers to object storage, and have the bookies delete them",
    "backlog": "explain the backlogs of subscriptions: tables, report, metrics",
    "compact": "write the latest value of each key, for readers of compacted topics",
}
METADATA_URL_DEFAULT: Final = "etcd:http://127.0.0.1:2379"
ENVIRONMENT: Final = "MAGNETAR_"
SIGNALLED: Final = 128
CANCEL_TIMEOUT_S: Final = 10.0
"""Time for interrupted tasks to revoke leases and close connections."""


class Terminated(BaseException):
    """Raised in the main thread by SIGTERM."""


def main(
    argv: Sequence[str] | None = None, *, prog: str = "magnetar job", clock: Clock | None = None
) -> int:
    """Runs one job, and returns the exit code. Raises SystemExit for bad arguments and `--help`."""
    parser = argparse.ArgumentParser(prog=prog, description="Runs a Spark job over the log.")
    add_arguments(parser)
    return run_job(parser.parse_args(argv), clock=clock)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds a subcommand with its flags for each kind."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, text in KINDS.items():
        module = import_module(f"magnetar_spark.jobs.{kind}")
        added = kinds.add_parser(
            kind,
            help=text,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_common(added)
        module.add_arguments(added)
        added.set_defaults(refuse=added.error)


def _add_common(parser: argparse.ArgumentParser) -> None:
    flag = parser.add_argument_group("topics").add_argument
    flag("--topic", action="append", default=[], metavar="T", help="a topic; may be repeated")
    flag("--namespace", action="append", default=[], metavar="TENANT/NS", help="all topics of it")
    flag("--tenant", action="append", default=[], metavar="T", help="all topics of a tenant")
    flag("--all", action="store_true", help="all topics of the cluster")
    cluster = parser.add_argument_group("cluster (or $MAGNETAR_METADATA_URL and its like)")
    flag = cluster.add_argument
    flag("--metadata-url", "--metadata-store", metavar="URL", help="etcd:http://HOST:2379")
    flag("--metadata-root", metavar="PATH", help=f"the prefix of all keys ({ROOT_DEFAULT})")
    flag("--metadata-username", metavar="NAME", help="the etcd user")
    flag("--metadata-password-file", metavar="FILE", help="a file with the password as first line")
    flag("--metadata-tls-ca-file", metavar="FILE", help="the CA of etcd's certificates")
    flag("--metadata-tls-cert-file", metavar="FILE", help="the client certificate for etcd")
    flag("--metadata-tls-key-file", metavar="FILE", help="the key of the client certificate")
    flag("--admin-url", metavar="URL", help="the admin REST of any broker")
    flag("--bookkeeper-tls", action="store_const", const="true", help="reach bookies by TLS")
    flag("--tls-trust-file", metavar="FILE", help="the CAs of bookies and brokers")
    flag("--tls-cert-file", metavar="FILE", help="the job's certificate for bookies and brokers")
    flag("--tls-key-file", metavar="FILE", help="the key of the job's certificate")
    flag("--token-file", metavar="FILE", help="the job's token for the admin REST")
    flag = parser.add_argument_group("Spark").add_argument
    flag("--master", default="", metavar="URL", help="Spark's master (local[*])")
    flag("--conf", action="append", default=[], metavar="K=V", help="a setting of Spark")
    flag("--event-log", default="", metavar="DIR", help="have Spark write its event log there")
    flag = parser.add_argument_group("output").add_argument
    flag("--json", action="store_true", help="print the summary as one JSON document")
    flag("--no-progress", action="store_true", help="show no progress")
    flag(
        "--termination-message",
        type=Path,
        metavar="PATH",
        help="also write the summary to PATH, in 4096 bytes, for Kubernetes",
    )


def run_job(args: argparse.Namespace, *, clock: Clock | None = None) -> int:
    """Runs the job of parsed arguments, and returns the exit code."""
    prepare()
    clock = clock or SystemClock()
    if not (args.topic or args.namespace or args.tenant or args.all):
        args.refuse("select topics with --topic, --namespace, --tenant or --all")
    try:
        job = _context(args, clock)
    except (PreconditionFailed, ValueError) as error:
        args.refuse(str(error))
    previous = signal.signal(signal.SIGTERM, _terminate)
    code = 0
    try:
        code = _run_kind(job)
    except KeyboardInterrupt:
        code = SIGNALLED + signal.SIGINT
        job.summary.fail("interrupted by SIGINT")
    except Terminated:
        code = SIGNALLED + signal.SIGTERM
        job.summary.fail("interrupted by SIGTERM")
    finally:
        job.sessions.stop()
        cancel_all(CANCEL_TIMEOUT_S)
        signal.signal(signal.SIGTERM, previous)
    job.summary.finished_ms = clock.now_ms()
    _report(job)
    return code or job.summary.exit_code


def _run_kind(job: JobContext) -> int:
    """Runs the kind's package. An exception becomes the job's failure in the summary."""
    try:
        import_module(f"magnetar_spark.jobs.{job.kind}").run(job)
    except (MagnetarError, TimeoutError, OSError) as error:
        job.summary.fail(str(error) or type(error).__name__)
    except Exception as error:
        job.summary.fail(f"{type(error).__name__}: {error}")
        if not _of_spark(error):
            job.progress.say(f"{job.kind} failed unexpectedly")
            _report(job)
            raise
    return job.summary.exit_code


def _of_spark(error: Exception) -> bool:
    """Whether the error comes from Spark or the JVM, so that its text explains the failure."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def _context(args: argparse.Namespace, clock: Clock) -> JobContext:
    conf = {}
    for setting in args.conf:
        name, separator, value = setting.partition("=")
        if not separator or not name:
            raise PreconditionFailed(f"--conf {setting!r}: write NAME=VALUE")
        conf[name] = value
    return JobContext(
        kind=args.kind,
        job_id=uuid.uuid4().hex,
        arguments=args,
        log=log_settings(args, os.environ),
        selection=Selection(
            tuple(args.topic), tuple(args.namespace), tuple(args.tenant), everything=args.all
        ),
        sessions=Sessions(
            f"magnetar {args.kind}", master=args.master, conf=conf, event_log=args.event_log
        ),
        progress=progress.chosen(wanted=not args.no_progress),
        summary=Summary(args.kind, clock.now_ms()),
        clock=clock,
    )


def log_settings(args: argparse.Namespace, environ: Mapping[str, str]) -> LogSettings:
    """The log settings from flags, or else from MAGNETAR_METADATA_URL and its like."""

    def of(name: str, default: str = "") -> str:
        return getattr(args, name, None) or environ.get(ENVIRONMENT + name.upper()) or default

    path, password = of("metadata_password_file"), ""
    if path:
        try:
            password = Path(path).read_text().partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PreconditionFailed(f"--metadata-password-file {path}: {error}") from error
    return LogSettings(
        metadata_url=of("metadata_url", METADATA_URL_DEFAULT),
        metadata_root=of("metadata_root", ROOT_DEFAULT),
        admin_url=of("admin_url"),
        tls_ca_file=of("metadata_tls_ca_file"),
        tls_cert_file=of("metadata_tls_cert_file"),
        tls_key_file=of("metadata_tls_key_file"),
        username=of("metadata_username"),
        password=password,
        bookkeeper_tls=of("bookkeeper_tls").lower() == "true",
        trust_file=of("tls_trust_file"),
        cert_file=of("tls_cert_file"),
        key_file=of("tls_key_file"),
        token_file=of("token_file"),
    )


def _report(job: JobContext) -> None:
    """Writes the summary to stdout, and to the termination message's file."""
    if job.arguments.json:
        sys.stdout.write(job.summary.document().decode() + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in job.summary.lines())
    sys.stdout.flush()
    path: Path | None = job.arguments.termination_message
    if path is not None:
        path.write_bytes(job.summary.termination_message())
