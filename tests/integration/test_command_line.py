"""`magnetar produce`, `consume` and `read` on a real standalone: options, signals, pipes."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.server_process import ServerProcess

from magnetar.cli.main import main
from magnetar.client import AvroSchema, Client

PATIENCE_S = 120.0

pytestmark = pytest.mark.timeout(300)


@dataclass
class Order:
    """A record of an Avro schema."""

    number: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("command-line")
    with ServerProcess(root, environment={"MAGNETAR_TRANSACTIONS": "true"}) as server:
        yield server


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/cli-{uuid4().hex[:8]}"


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


Run = Callable[..., Done]


@pytest.fixture
def magnetar(
    server: ServerProcess, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs a command in this process, which imports only once."""
    monkeypatch.setenv("MAGNETAR_URL", server.service_url)
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", server.http_url)

    def run(*arguments: str) -> Done:
        capfd.readouterr()
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capfd.readouterr()
        return Done(code, printed.out, printed.err)

    return run


def started(server: ServerProcess, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "magnetar.cli.main", *arguments, "-u", server.service_url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_messages_of_arguments_files_and_lines(magnetar: Run, topic: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.write_bytes(b"two\nlines\xff")
    sent = magnetar(
        *("produce", topic, "-m", "hello", "-f", str(whole), "-n", "2", "--print-ids"),
        *("-k", "k1", "-p", "region=eu", "--event-time", "1767323045678", "-z", "zlib"),
    )
    assert (sent.code, len(sent.lines)) == (0, 4)
    assert sent.err.startswith("4 messages sent, 30 B in ")
    lines = tmp_path / "lines"
    lines.write_bytes(b"a=1|b=|")
    options = ("-l", str(lines), "-D", "|", "-K", "=", "-Z", "--no-batching", "-q")
    assert magnetar("produce", topic, *options) == Done(0, "", "")

    read = magnetar("read", topic, "--json")
    assert read.code == 0
    assert read.err.startswith("6 messages read, ")
    assert [line["id"] for line in read.documents[:4]] == sent.lines
    first, second, *_, fifth, sixth = read.documents
    assert first["value"] == "hello"
    assert first["properties"] == {"region": "eu"}
    assert (first["key"], first["eventTime"]) == ("k1", 1767323045678)
    assert second["valueBase64"] == "dHdvCmxpbmVz/w=="
    assert [fifth["key"], fifth["value"]] == ["a", "1"]
    assert [sixth["key"], sixth["value"]] == ["b", None]


def test_where_a_reader_starts(magnetar: Run, topic: str) -> None:
    one = magnetar("produce", topic, "-m", "1", "--print-ids").lines[0]
    between = magnetar("read", topic, "--json").documents[0]["publishTime"] + 1
    magnetar("produce", topic, "-m", "2", "-m", "3")
    ids = [line["id"] for line in magnetar("read", topic, "--json").documents]

    def read(*options: str) -> list[str]:
        done = magnetar("read", topic, *options)
        assert done.code == 0, done.err
        return done.lines

    assert read("--start", one) == ["1", "2", "3"]
    assert read("--start", one, "--exclusive") == ["2", "3"]
    assert read("--start", ids[1]) == ["2", "3"]
    assert read("--start", str(between)) == ["2", "3"]
    assert read("--start", "latest") == []
    assert read("-n", "2", "-F", "%s;") == ["1;2;"]
    late = magnetar("read", topic, "-n", "4", "--timeout", "0.2")
    assert (late.code, late.lines) == (3, ["1", "2", "3"])


def test_acknowledged_messages_do_not_come_again(magnetar: Run, topic: str) -> None:
    magnetar("consume", topic, "-s", "sub", "--timeout", "0.1")
    magnetar("produce", topic, "-m", "1", "-m", "2", "-m", "3", "--no-batching")
    kept = magnetar("consume", topic, "-s", "sub", "-n", "1", "--no-ack")
    assert kept.lines == ["1"]
    taken = magnetar("consume", topic, "-s", "sub", "-n", "2", "-t", "Key_Shared", "-o", "hex")
    assert (taken.code, taken.lines) == (0, ["31", "32"])
    rest = magnetar("consume", topic, "-s", "sub", "-t", "shared", "--timeout", "1")
    assert (rest.code, rest.lines) == (0, ["3"])


def test_topics_of_an_expression_and_records_of_schemas(
    magnetar: Run, server: ServerProcess, topic: str
) -> None:
    import asyncio

    async def produce() -> None:
        async with (
            Client(server.service_url) as client,
            client.producer(f"{topic}-avro", schema=AvroSchema(Order)) as producer,
        ):
            await producer.send(Order(7))

    asyncio.run(produce())
    pattern = topic.removeprefix("persistent://") + "-.*"
    magnetar("produce", f"{topic}-plain", "-m", "x")
    options = ("--regex", "-s", "all", "-p", "earliest", "-n", "2", "--json")
    done = magnetar("consume", pattern, *options)
    assert done.code == 0, done.err
    values = {line["topic"]: line["value"] for line in done.documents}
    assert values == {f"{topic}-avro": {"number": 7}, f"{topic}-plain": "x"}
    raw = magnetar("read", f"{topic}-avro", "--raw", "-o", "hex")
    assert raw.lines == ["0e"]


def test_records_of_a_definition(magnetar: Run, topic: str, tmp_path: Path) -> None:
    definition = tmp_path / "order.avsc"
    definition.write_text(
        json.dumps(
            {
                "type": "record",
                "name": "Order",
                "fields": [
                    {"name": "number", "type": "long"},
                    {"name": "note", "type": ["null", "string"], "default": None},
                ],
            }
        )
    )
    for kind in ("avro", "json"):
        name = f"{topic}-{kind}"
        value = '{"number": 7, "note": "x"}'
        declared = ("--schema", kind, "--schema-file", str(definition))
        done = magnetar("produce", name, *declared, "-m", value)
        assert done.code == 0, done.err
        documents = magnetar("read", name, "--json").documents
        assert [line["value"] for line in documents] == [{"number": 7, "note": "x"}]
        assert documents[0]["schemaVersion"] == 0
    inline = f"avro:{definition.read_text()}"
    done = magnetar("produce", f"{topic}-avro", "-vs", inline, "-m", '{"number": "x"}')
    assert (done.code, "the value" in done.err) == (1, True), done.err
    done = magnetar("produce", f"{topic}-avro", "-vs", "avro:5", "-m", "{}")
    assert (done.code, "no Avro schema" in done.err) == (2, True), done.err
    done = magnetar("produce", f"{topic}-json", "-vs", "string", "-m", "x")
    assert (done.code, "schema" in done.err) == (1, True), done.err


def test_copies_of_topics_are_equal(magnetar: Run, server: ServerProcess, topic: str) -> None:
    magnetar("produce", topic, "-m", "a", "-m", "b", "-k", "k", "-p", "x=y")
    copied = magnetar("read", topic, "--json").out.encode()
    producing = started(server, "produce", f"{topic}-2", "--json", stdin=subprocess.PIPE)
    _, errors = producing.communicate(copied, PATIENCE_S)
    assert producing.returncode == 0, errors

    def contents(name: str) -> list[tuple[str, str, dict[str, str]]]:
        documents = magnetar("read", name, "--json").documents
        return [(line["value"], line["key"], line["properties"]) for line in documents]

    assert (
        contents(f"{topic}-2")
        == contents(topic)
        == [("a", "k", {"x": "y"}), ("b", "k", {"x": "y"})]
    )


def test_a_signal_ends_a_follower_with_its_summary(server: ServerProcess, topic: str) -> None:
    following = started(server, "consume", topic, "-s", "sub", "-p", "earliest", "--follow")
    assert following.stdout is not None
    producing = started(server, "produce", topic, stdin=subprocess.PIPE)
    assert producing.stdin is not None
    producing.stdin.write(b"one\n")
    producing.stdin.flush()
    assert following.stdout.readline() == b"one\n"
    for process in (producing, following):
        process.send_signal(signal.SIGINT)
    _, errors = producing.communicate(timeout=PATIENCE_S)
    assert producing.returncode == 130
    assert errors.startswith(b"1 message sent, 3 B in ")
    assert errors.endswith(b"; interrupted\n")
    _, errors = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0
    assert errors.startswith(b"1 message received, ")


def test_a_broken_pipe_is_quiet_and_what_it_lost_is_not_acknowledged(
    magnetar: Run, server: ServerProcess, topic: str
) -> None:
    magnetar("produce", topic, "-m", "x" * 1000, "-n", "2000")
    with started(server, "consume", topic, "-s", "sub", "-p", "earliest") as consuming:
        assert consuming.stdout is not None
        consuming.stdout.read(1)
        consuming.stdout.close()
        assert consuming.stderr is not None
        assert consuming.stderr.read() == b""
        assert consuming.wait(PATIENCE_S) == 0
    rest = magnetar("consume", topic, "-s", "sub", "-n", "1500")
    assert (rest.code, len(rest.lines)) == (0, 1500)


IMPORTS = """
import sys
before = set(sys.modules)
from magnetar.cli.main import main
assert main(sys.argv[1:]) == 0
imported = {name for name in sys.modules.keys() - before}
roots = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
print(*sorted(roots), *sorted(name for name in imported if name.startswith("magnetar.broker")))
"""


def test_no_extra_is_needed(server: ServerProcess, topic: str) -> None:
    for command in (("produce", topic, "-m", "x"), ("read", topic, "-D", "", "-F", "")):
        arguments = [*command, "-q", "-u", server.service_url]
        done = subprocess.run(
            [sys.executable, "-c", IMPORTS, *arguments], capture_output=True, text=True, check=True
        )
        assert set(done.stdout.removeprefix("x").split()) <= {
            *("google", "google_crc32c", "magnetar", "mmh3", "msgspec"),
            "typing_extensions",  # which msgspec imports where it is installed
        }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("produce", "t", "-m", "x", "-l", "f"), "--lines excludes --message"),
        (("produce", "t", "-n", "3"), "--count repeats --message and --file"),
        (("produce", "t", "-m", "x", "--no-batching", "--batch-messages", "9"), "--no-batching"),
        (("produce", "t", "-m", "x", "--public-key", "f"), "go together"),
        (("consume", "t", "-s", "s", "-f", "-n", "1"), "--follow excludes --count"),
        (("consume", "t", "-s", "s", "--json", "-o", "hex"), "--json excludes"),
        (("consume", "t", "-s", "s", "-F", "%y"), "%y is not one of"),
        (("consume", "t"), "the following arguments are required: -s"),
        (("read", "t", "--exclusive"), "--exclusive needs --start with a message id"),
        (("read", "t", "u", "--start", "1:0"), "belongs to one topic"),
        (("read", "bad//name"), "bad//name"),
    ],
)
def test_arguments_that_cannot_be_honored(
    magnetar: Run, arguments: tuple[str, ...], reason: str
) -> None:
    done = magnetar(*arguments)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err


def test_failures_name_the_remedy(magnetar: Run, topic: str, tmp_path: Path) -> None:
    gone = magnetar("read", topic)
    assert gone.code == 1
    assert topic in gone.err
    refused = magnetar(
        "produce", topic, "-m", "x", "-u", "pulsar://127.0.0.1:1", "--operation-timeout", "0.5"
    )
    assert refused.code == 1
    assert "127.0.0.1:1" in refused.err
    bad = tmp_path / "bad"
    bad.write_text('{"value": "fine"}\n{"color": 1}\n')
    half = magnetar("produce", topic, "--json", "-l", str(bad))
    assert half.code == 1
    assert "line 2" in half.err
    assert half.err.startswith("1 message sent")
