"""The flags of every job: names, values, and their meaning."""

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from magnetar.core.clock import SystemClock
from magnetar.core.errors import PreconditionFailed
from magnetar.core.ids import Position
from magnetar.jobs.log.topics import Selection
from magnetar.jobs.offload.plan import Override
from magnetar.offload.stores import StoreSpec
from magnetar_spark.jobs import main as frame
from magnetar_spark.jobs import progress, session
from magnetar_spark.jobs.context import JobContext
from magnetar_spark.jobs.offload.flags import override_of
from magnetar_spark.jobs.session import Sessions
from magnetar_spark.log.settings import LogSettings

COMMON = {
    "topics": ["--topic T", "--namespace TENANT/NS", "--tenant T", "--all"],
    "cluster (or $MAGNETAR_METADATA_URL and its like)": [
        "--metadata-url --metadata-store URL",
        "--metadata-root PATH",
        "--metadata-username NAME",
        "--metadata-password-file FILE",
        "--metadata-tls-ca-file FILE",
        "--metadata-tls-cert-file FILE",
        "--metadata-tls-key-file FILE",
        "--admin-url URL",
        "--bookkeeper-tls",
        "--tls-trust-file FILE",
        "--tls-cert-file FILE",
        "--tls-key-file FILE",
        "--token-file FILE",
    ],
    "Spark": ["--master URL", "--conf K=V", "--event-log DIR"],
    "output": ["--json", "--no-progress", "--termination-message PATH"],
}
OWN = {
    "offload": {
        "offload (default: the offload policies)": [
            "--store URL",
            "--threshold BYTES",
            "--threshold-age S",
            "--up-to L:E",
            "--roll",
            "--deletion-lag S",
        ]
    },
    "backlog": {
        "backlog": [
            "--output DIR|URL",
            "--scan-bytes-max BYTES",
            "--what-if POLICY",
            "--top N",
            "--default-retention TIME/SIZE",
            "--default-ttl TIME",
            "--no-publish",
        ]
    },
    "compact": {
        "compact (default: the offload policies)": [
            "--store URL",
            "--parallelism N",
            "--always-spark",
        ]
    },
}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="job")
    frame.add_arguments(made)
    return made


def parsed(*arguments: str) -> argparse.Namespace:
    return parser().parse_args(arguments)


def kinds() -> dict[str, argparse.ArgumentParser]:
    (choices,) = (each.choices for each in parser()._actions if each.dest == "kind")
    assert isinstance(choices, dict)
    return choices


@pytest.mark.parametrize("kind", OWN)
def test_every_flag_is_listed_with_what_it_takes_and_what_it_is_for(kind: str) -> None:
    found = {
        group.title: [
            " ".join([*action.option_strings, *([str(action.metavar)] if action.metavar else [])])
            for action in group._group_actions
            if action.dest != "help" and action.help is not argparse.SUPPRESS
        ]
        for group in kinds()[kind]._action_groups
    }
    listed = {title: flags for title, flags in found.items() if flags}
    assert listed == {**COMMON, **OWN[kind]}
    for action in kinds()[kind]._actions:
        assert action.help, action.option_strings


def test_every_kind_is_described_line_by_line() -> None:
    assert list(kinds()) == list(OWN)
    text = parser().format_help()
    for kind, said in frame.KINDS.items():
        assert said in " ".join(text.split())
        module = import_module(f"magnetar_spark.jobs.{kind}")
        assert module.DESCRIPTION in kinds()[kind].format_help()
    with pytest.raises(SystemExit):
        parsed()


def test_what_is_not_given_is_left_to_policies_and_defaults() -> None:
    offload = parsed("offload")
    assert (offload.topic, offload.namespace, offload.tenant, offload.conf) == ([], [], [], [])
    assert (offload.all, offload.json, offload.no_progress) == (False, False, False)
    assert (offload.master, offload.event_log, offload.termination_message) == ("", "", None)
    assert override_of(offload) == Override()
    backlog = parsed("backlog")
    assert (backlog.scan_bytes_max, backlog.top, backlog.what_if) == (256 << 20, 20, [])
    assert (backlog.output, backlog.no_publish) == (None, False)
    compact = parsed("compact")
    assert (compact.parallelism, compact.always_spark) == (os.cpu_count(), False)
    assert (compact.store, compact.store_endpoint, compact.store_region) == (None, None, None)


def test_flags_that_may_be_repeated_add_up() -> None:
    found = parsed(
        *("backlog", "--topic", "a", "--topic", "b", "--namespace", "n/a", "--namespace", "n/b"),
        *("--tenant", "x", "--tenant", "y", "--conf", "a=1", "--conf", "b=2"),
        *("--what-if", "ttl=1h", "--what-if", "retention=0"),
    )
    assert (found.topic, found.namespace, found.tenant) == (["a", "b"], ["n/a", "n/b"], ["x", "y"])
    assert (found.conf, found.what_if) == (["a=1", "b=2"], ["ttl=1h", "retention=0"])


def test_numbers_are_numbers() -> None:
    found = override_of(
        parsed(
            *("offload", "--threshold", "7", "--threshold-age", "8", "--deletion-lag", "9"),
            *("--up-to", "3:4", "--store", "s3://b/p?region=r&endpoint=http://e"),
        )
    )
    spec = StoreSpec("aws-s3", "b", "r", "http://e", "p")
    assert found == Override(spec, 7, 8, 9_000, Position(3, 4))
    assert override_of(parsed("offload", "--deletion-lag", "-1")).deletion_lag_ms == -1
    assert parsed("compact", "--parallelism", "3").parallelism == 3
    assert parsed("backlog", "--scan-bytes-max", "5", "--top", "6").scan_bytes_max == 5
    assert parsed("backlog", "--top", "6").top == 6
    for given in (("offload", "--threshold", "x"), ("compact", "--parallelism", "x")):
        with pytest.raises(SystemExit):
            parsed(*given)


def context(*arguments: str) -> JobContext:
    return frame._context(parsed(*arguments), SystemClock())


def test_a_jobs_context_is_what_its_flags_say(tmp_path: Path) -> None:
    made = context(
        *("offload", "--topic", "a", "--namespace", "n/a", "--tenant", "t", "--all"),
        *("--metadata-url", "etcd:http://x:1", "--metadata-root", "/r", "--admin-url", "http://a"),
        *("--metadata-tls-ca-file", "ca", "--metadata-tls-cert-file", "cert"),
        *("--metadata-tls-key-file", "key", "--metadata-username", "me"),
        *("--bookkeeper-tls", "--tls-trust-file", "t", "--tls-cert-file", "c"),
        *("--tls-key-file", "k", "--token-file", "token"),
        *("--master", "local[3]", "--conf", "a=b=c", "--event-log", str(tmp_path)),
        "--no-progress",
    )
    assert made.selection == Selection(("a",), ("n/a",), ("t",), everything=True)
    assert made.log == LogSettings(
        "etcd:http://x:1",
        "/r",
        "http://a",
        tls_ca_file="ca",
        tls_cert_file="cert",
        tls_key_file="key",
        username="me",
        bookkeeper_tls=True,
        trust_file="t",
        cert_file="c",
        key_file="k",
        token_file="token",  # noqa: S106 -- a file, not a token
    )
    assert (made.kind, made.summary.job, len(made.job_id)) == ("offload", "offload", 32)
    assert context("backlog", "--all").job_id != made.job_id
    assert isinstance(made.progress, progress.Silence)
    assert made.sessions._name == "magnetar offload"
    settings = made.sessions._settings(submitted=False)
    assert (settings["a"], settings["spark.master"]) == ("b=c", "local[3]")
    assert settings["spark.eventLog.dir"] == tmp_path.as_uri()
    assert not isinstance(context("offload", "--all").progress, progress.Silence)
    assert context("offload", "--topic", "a").selection.everything is False


def test_without_flags_and_environment_etcd_is_on_this_host() -> None:
    found = frame.log_settings(argparse.Namespace(), {})
    assert found == LogSettings("etcd:http://127.0.0.1:2379", "/magnetar")
    given = {
        "MAGNETAR_ADMIN_URL": "http://a",
        "MAGNETAR_METADATA_TLS_CA_FILE": "ca",
        "MAGNETAR_METADATA_TLS_CERT_FILE": "cert",
        "MAGNETAR_METADATA_TLS_KEY_FILE": "key",
        "MAGNETAR_METADATA_USERNAME": "me",
    }
    found = frame.log_settings(argparse.Namespace(metadata_username=None), given)
    assert (found.admin_url, found.tls_ca_file, found.tls_cert_file) == ("http://a", "ca", "cert")
    assert (found.tls_key_file, found.username, found.password) == ("key", "me", "")


def test_a_password_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("  hush \nand more\n")
    named = argparse.Namespace(metadata_password_file=str(secret))
    assert frame.log_settings(named, {}).password == "hush"  # noqa: S105
    secret.write_bytes(b"\xff\xfe")
    with pytest.raises(PreconditionFailed, match=f"--metadata-password-file {secret}"):
        frame.log_settings(named, {})


@pytest.mark.parametrize("conf", ["x", "=v", ""])
def test_a_setting_of_spark_has_a_name_and_a_value(conf: str) -> None:
    with pytest.raises(PreconditionFailed, match="write NAME=VALUE"):
        context("offload", "--all", "--conf", conf)


def test_a_driver_that_is_this_process_is_bounded_and_listens_to_nobody() -> None:
    settings = Sessions("job", conf={})._settings(submitted=False)
    assert settings == {
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.GRPC_ENABLE_FORK_SUPPORT": "0",
        "spark.master": "local[*]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={session.QUIET.as_uri()}",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    }
    assert session.QUIET.is_file()


def test_what_spark_submit_was_given_stays() -> None:
    common = {
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.GRPC_ENABLE_FORK_SUPPORT": "0",
    }
    assert Sessions("job", conf={})._settings(submitted=True) == common
    given = Sessions("job", master="k8s://x", conf={"spark.sql.session.timeZone": "CET"})
    assert given._settings(submitted=True) == {
        **common,
        "spark.master": "k8s://x",
        "spark.sql.session.timeZone": "CET",
    }


def test_events_are_logged_to_a_folder_or_an_url(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for place, url in (
        (str(folder), folder.as_uri()),
        ("s3a://b/x", "s3a://b/x"),
        (f"file:{folder}", f"file:{folder}"),
    ):
        found = session.event_log_settings(place)
        assert found == {"spark.eventLog.enabled": "true", "spark.eventLog.dir": url}
    assert folder.is_dir()


def test_java_is_that_of_its_home_else_that_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("home/bin", "path"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "java").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert session.java() == str(tmp_path / "home/bin/java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert session.java() is None, "not another one"
    monkeypatch.delenv("JAVA_HOME")
    assert session.java() == str(tmp_path / "path/java")


def test_a_session_that_was_not_started_here_is_not_stopped() -> None:
    sessions = Sessions("job", conf={})
    sessions.stop()
    sessions.stop()
    assert sessions._session is None


def test_forks_do_not_run_grpcs_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "1")
    session.prepare()
    assert os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "0"


def test_lines_tell_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    lines = progress.Lines(said.append)
    with lines.units("ledgers", 2_000) as advance:
        advance(5)
        now_s += progress.LINE_EVERY_S - 1
        advance(5)
        assert said == []
        now_s += 1
        advance(1_000)
        advance(1)
        assert said == ["ledgers: 1,010 of 2,000\n"]
    assert said[1:] == ["ledgers: 1,011 of 2,000\n"]
    with lines.units("read", 7, "topics"):
        pass
    assert said[2:] == ["read: 0 of 7 topics\n"]


def test_bars_end_when_the_last_of_them_does() -> None:
    bars = progress.Bars()
    live = bars._bars.live
    with bars.units("outer", 3, "ledgers") as advance:
        assert live.is_started
        with bars.units("inner", 2_000_000, progress.BYTES) as more:
            more(1_000_000)
            inner, outer = bars._bars.tasks[1], bars._bars.tasks[0]
            assert inner.fields["shown"].startswith("1.0/2.0 MB, ")
            assert (inner.completed, inner.total) == (1_000_000, 2_000_000)
            advance(2)
            assert (outer.fields["shown"], outer.completed) == ("2/3 ledgers", 2)
        assert live.is_started
        assert len(bars._bars.tasks) == 1
    assert not live.is_started
    assert bars._bars.tasks == []


def test_what_fits_where_stderr_goes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(progress.chosen(wanted=False), progress.Silence)
    for terminal, kind in ((False, progress.Lines), (True, progress.Bars)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda there=terminal: there)
        assert isinstance(progress.chosen(wanted=True), kind)
    with progress.Silence().units("x", 1) as advance:
        advance(1)
