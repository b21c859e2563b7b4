"""The lines of pulsar-perf's log, its flags, and the live line."""

import argparse
import io
import re
from collections import deque
from pathlib import Path

import pytest

from magnetar.cli.main import main
from magnetar.cli.messages.errors import UsageFailed
from magnetar.cli.perf import add_parser, flags, lines, produce
from magnetar.cli.perf.histogram import Histogram
from magnetar.cli.perf.live import LiveLine, progress_bar, rate_bars

TAIL = (
    "Latency: mean:   1.500 ms - med:   1.000 - 95pct:   2.000 - 99pct:   2.000 - "
    "99.9pct:   2.000 - 99.99pct:   2.000 - Max:   2.000"
)

WHOLE = "Latency: mean: 1.500 ms - med: 1 - 95pct: 2 - 99pct: 2 - 99.9pct: 2 - 99.99pct: 2 - Max: 2"
FLAGS = Path(__file__).parent / "pulsar_perf_flags.txt"
"""Of each command of pulsar-perf 4.0.8, from its help: the command, then its flags."""


def latencies() -> Histogram:
    histogram = Histogram()
    histogram.record(1000)
    histogram.record(2000)
    return histogram


def test_lines_are_those_of_pulsar_perf() -> None:
    """Copied from the log of pulsar-perf 4.0.8, with other numbers."""
    assert lines.produced_line(12, 3.0, 0.5, 0.0, latencies()) == (
        "Throughput produced:      12 msg ---      3.0 msg/s ---      0.5 Mbit/s  --- "
        f"failure      0.0 msg/s --- {TAIL}"
    )
    assert lines.received_line(12, 3.0, 0.5, 0.0, latencies()) == (
        f"Throughput received:      12 msg --- 3.000  msg/s --- 0.500 Mbit/s  --- {WHOLE}"
    )
    assert lines.read_line(12, 3.0, 0.5, 0.0, latencies()) == (
        f"Read throughput:      12 msg --- 3.000  msg/s -- 0.500 Mbit/s --- {WHOLE}"
    )
    assert lines.total_sent(12, 3.0, 0.5) == (
        "Aggregated throughput stats --- 12 records sent --- 3.000 msg/s --- 0.500 Mbit/s "
    )
    assert lines.total_latency(latencies()) == (
        f"Aggregated latency stats --- {TAIL.replace(' - Max', ' - 99.999pct:   2.000 - Max')}"
    )
    assert lines.total_latency(latencies(), whole=True) == (
        f"Aggregated latency stats --- {WHOLE.replace(' - Max', ' - 99.999pct: 2 - Max')}"
    )
    assert lines.total_received(12, 3.0, 0.5, 6, 2.0) == (
        "Aggregated throughput stats --- 12 records received --- 3.000 msg/s --- 0.500 Mbit/s"
        " --- AckRate: 3.000  msg/s --- ack failed 0 msg"
    )
    assert lines.transactions(1, 1.0, latencies(), latencies(), enabled=True) == (
        "Throughput transaction:       1 transaction executes ---   1.000 transaction/s  --- "
        f"send {TAIL} --- ack {TAIL}"
    )
    assert lines.megabits(131_072) == 1.0


@pytest.mark.parametrize("line", FLAGS.read_text().splitlines())
def test_each_flag_of_pulsar_perf_works_or_is_refused(line: str) -> None:
    command, *theirs = line.split()
    subparsers = argparse.ArgumentParser().add_subparsers()
    add_parser(subparsers)
    actions = subparsers.choices["perf"]._actions
    (commands,) = (action for action in actions if action.dest == "kind")
    assert isinstance(commands, argparse._SubParsersAction)
    assert set(theirs) <= commands.choices[command]._option_string_actions.keys()


def test_the_live_line() -> None:
    assert progress_bar(0.5, 4) == "██░░"
    assert progress_bar(7, 4) == "████"
    assert rate_bars([0.0, 0.01, 4.0, 8.0]) == " ▁▄█"
    assert rate_bars(deque([0.0, 0.0])) == "  "
    plain = io.StringIO()
    live = LiveLine(plain)
    live.update(1.0, "text", 0.5)
    live.clear()
    assert plain.getvalue() == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("produce", "t", "-ioThreads", "2"), "-ioThreads of pulsar-perf is not supported"),
        (("produce", "t", "--auth-params", "token:x"), "use --token-file"),
        (("produce", "t", "-txn"), "magnetar perf transaction"),
        (("produce", "t", "-bw"), "-bw of pulsar-perf is not supported"),
        (("consume", "t", "-pm=true"), "-pm of pulsar-perf is not supported"),
        (("consume", "t", "--histogram-file", "f"), "--histogram-file of pulsar-perf"),
        (("read", "t", "--use-tls"), "pulsar+ssl://"),
        (("read", "t", "-m", "10m"), "is not earliest, latest or LEDGER:ENTRY"),
        (("produce", "t", "-dr", "5,5"), "is not ORIGIN,BOUND"),
        (("produce", "t", "-ml", "12X"), "is not a size"),
        (("produce", "a", "b", "-t", "3"), "--num-topics is 3, and 2 topics are given"),
        (("produce", "t", "-p", "5"), "-p needs -o"),
        (("produce", "t", "-fp"), "--format-payload needs --payload-file"),
        (("consume", "t", "-n", "2"), "--num-consumers above 1"),
        (("consume", "t", "-ss", "a,b,c", "-ns", "2"), "--num-subscriptions is 2"),
        (("transaction", "--txn-disable", "-abort"), "-abort needs transactions"),
    ],
)
def test_flags_that_are_not_honored_are_refused(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["perf", *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert reason in re.sub(r"\s+", " ", printed.err)


def test_topics_and_subscriptions_by_number() -> None:
    assert flags.topics_of(["t"], 3, "-") == ["t-0", "t-1", "t-2"]
    assert flags.topics_of(["a", "b"], 1, "-") == flags.topics_of(["a", "b"], 2, "-") == ["a", "b"]
    args = argparse.Namespace(subscriptions=["s"], num_subscriptions=2)
    assert flags.subscriptions_of(args) == ["s-0", "s-1"]
    args = argparse.Namespace(subscriptions=["a,b", "c"], num_subscriptions=3)
    assert flags.subscriptions_of(args) == ["a", "b", "c"]


def test_payloads(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    produce.add_flags(parser)
    assert len(produce.payloads(parser.parse_args(["t", "-s", "7"]))(0)) == 7
    file = tmp_path / "payloads"
    file.write_text("a%i\na%i\n")
    args = parser.parse_args(["t", "-f", str(file), "-fp"])
    assert produce.payloads(args)(12) == b"a12"
    file.write_text("")
    with pytest.raises(UsageFailed, match="is empty"):
        produce.payloads(args)
