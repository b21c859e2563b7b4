"""The common parts of all jobs: arguments, topics, the summary, exit codes."""

import argparse
import json
from pathlib import Path

import pytest
from pyspark import SparkContext

from magnetar.core.clock import SystemClock
from magnetar.core.errors import PreconditionFailed, TopicNotFound
from magnetar.core.names import TopicName
from magnetar.jobs.log.topics import Selection, selected
from magnetar.metadata.memory import MemoryStore
from magnetar_spark.jobs.main import KINDS, log_settings, main
from magnetar_spark.jobs.progress import BYTES, Lines
from magnetar_spark.jobs.session import Sessions, event_log_settings
from magnetar_spark.jobs.summary import TERMINATION_BYTES_MAX, State, Summary

NOWHERE = "etcd:http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["offload"], "select topics with"),
        (["offload", "--all", "--conf", "x"], "write NAME=VALUE"),
        (["offload", "--all", "--metadata-password-file", "none"], "--metadata-password-file none"),
        (["unknown"], "invalid choice"),
        (["offload", "--topic"], "expected one argument"),
    ],
)
def test_bad_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_tells_of_itself(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as told:
        main([kind, "--help"])
    assert told.value.code == 0
    assert "--termination-message" in capsys.readouterr().out


def test_a_job_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = tmp_path / "message"
    arguments = ["offload", "--all", "--metadata-url", "local:here", "--json", "--no-progress"]
    assert main([*arguments, "--termination-message", str(message)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(message.read_text())
    assert (found["job"], found["state"]) == ("offload", "failed")
    assert "etcd:http://HOST:2379" in found["error"]
    assert found["startedMs"] <= found["finishedMs"]


def test_where_the_cluster_is_comes_from_flags_then_the_environment(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hush\n")
    environ = {
        "MAGNETAR_METADATA_URL": "etcd:http://a:1",
        "MAGNETAR_METADATA_ROOT": "/x",
        "MAGNETAR_METADATA_PASSWORD_FILE": str(secret),
    }
    found = log_settings(argparse.Namespace(metadata_url=None), environ)
    assert (found.metadata_url, found.metadata_root) == ("etcd:http://a:1", "/x")
    assert found.password == secret.read_text().strip()
    given = log_settings(argparse.Namespace(metadata_url="etcd:http://b:1"), environ)
    assert given.metadata_url == "etcd:http://b:1"


def test_a_part_that_failed_makes_the_job_done_in_part() -> None:
    summary = Summary("offload")
    summary.count("ledgers", 3)
    assert summary.exit_code == 0
    summary.failure("no answer", ledger=5)
    assert (summary.state, summary.exit_code) == (State.PARTIAL, 3)
    assert summary.metrics == {"ledgers": 3, "failed": 1}
    summary.fail("lost")
    assert (summary.state, summary.exit_code, summary.error) == (State.FAILED, 1, "lost")


def test_the_last_words_fit_into_a_pods_status() -> None:
    summary = Summary("offload")
    for ledger in range(500):
        summary.failure("\N{ROCKET}" * 5000, ledger=ledger)
        summary.count(f"metric{ledger}")
    words = summary.termination_message()
    assert len(words) <= TERMINATION_BYTES_MAX
    found = json.loads(words)
    assert found["metrics"]["failed"] == 500, "the first metrics stay"
    assert 0 < len(found["metrics"]) < 501
    assert found["details"] == []
    few = Summary("offload")
    for ledger in range(500):
        few.failure("short", ledger=ledger)
    assert 10 < len(json.loads(few.termination_message())["details"]) < 500
    assert len(json.loads(summary.document())["details"]) == 500


async def test_topics_by_name_namespace_and_tenant() -> None:
    store = MemoryStore(SystemClock())
    for name in (
        "a/x/persistent/t-partition-10",
        "a/x/persistent/t-partition-9",
        "a/y/persistent/u",
        "b/z/persistent/v",
    ):
        await store.put(f"/managed-ledgers/{name}", b"{}")
    await store.put("/partitioned-topics/a/x/persistent/t", b'{"partitions": 11}')

    async def names(**given: object) -> list[str]:
        found: list[TopicName] = await selected(store, Selection(**given))  # type: ignore[arg-type]
        return [str(topic).removeprefix("persistent://") for topic in found]

    in_x = ["a/x/t-partition-9", "a/x/t-partition-10"]
    assert await names(namespaces=("a/x",)) == in_x
    assert await names(tenants=("a",)) == [*in_x, "a/y/u"]
    assert await names(everything=True) == [*in_x, "a/y/u", "b/z/v"]
    assert await names(topics=("b/z/v",), namespaces=("b/z",)) == ["b/z/v"]
    assert len(await names(topics=("a/x/t",))) == 11, "partitions that nobody has written to"
    assert await names(namespaces=("a/none",)) == []
    with pytest.raises(TopicNotFound):
        await names(topics=("a/x/none",))


def test_the_event_log_is_made(tmp_path: Path) -> None:
    found = event_log_settings(str(tmp_path / "events"))
    assert (tmp_path / "events").is_dir()
    assert found["spark.eventLog.dir"] == (tmp_path / "events").as_uri()
    assert event_log_settings("s3a://b/x")["spark.eventLog.dir"] == "s3a://b/x"


def test_lines_where_there_is_no_terminal() -> None:
    said: list[str] = []
    lines = Lines(said.append)
    with lines.units("offloaded", 2_000_000, BYTES) as advance:
        advance(500_000)
        advance(1_500_000)
    assert said == ["offloaded: 2.0 of 2.0 MB\n"]


def test_without_java_the_job_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PreconditionFailed, match="apt-get install openjdk-17"):
        Sessions("test", conf={}).get()
