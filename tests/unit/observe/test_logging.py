"""Log lines in both formats: fields, levels, exceptions, and records of libraries."""

import io
import json
import logging
from collections.abc import Iterator

import httpx
import pytest

from magnetar.core.log import get_logger
from magnetar.observe.logging import QUIET_LIBRARIES, configure


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    quiet = [(logger := logging.getLogger(name), logger.level) for name in QUIET_LIBRARIES]
    yield
    for logger, its_level in quiet:
        logger.setLevel(its_level)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(log_format: str, level: str = "info", role_log: str = "NONE") -> io.StringIO:
    stream = io.StringIO()
    # basicConfig(force=True) would close pytest's own handlers.
    logging.getLogger().handlers.clear()
    configure(log_format, level, stream, role_log)
    return stream


def test_json_has_time_level_logger_event_and_fields() -> None:
    stream = lines("json")
    get_logger("magnetar.x").info("100% done", ledger_id=7, path="a b")
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "magnetar.x",
        "event": "100% done",
        "ledger_id": 7,
        "path": "a b",
    }


def test_bound_fields_go_with_every_line_and_call_fields_win() -> None:
    stream = lines("json")
    log = get_logger("magnetar.x").bind(topic="t", n=1)
    log.warning("a", n=2)
    line = json.loads(stream.getvalue())
    assert (line["topic"], line["n"]) == ("t", 2)


def test_exceptions_come_with_their_traceback() -> None:
    stream = lines("json")
    log = get_logger("magnetar.x")
    try:
        raise ValueError("boom")
    except ValueError as error:
        log.exception("failed")
        log.error("failed", exc_info=error, error=repr(error))
    for line in map(json.loads, stream.getvalue().splitlines()):
        assert "ValueError: boom" in line["exception"]


def test_a_value_that_json_does_not_know_is_shown_as_text() -> None:
    stream = lines("json")
    get_logger("magnetar.x").info("a", value={1})
    assert json.loads(stream.getvalue())["value"] == "{1}"


def test_console_is_one_line_with_quoted_values() -> None:
    stream = lines("console")
    get_logger("magnetar.x").info("opened", topic="t", reason="two words", empty="")
    text = stream.getvalue()
    assert text.endswith('magnetar.x  opened topic=t reason="two words" empty=""\n')
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "text", ["\x1b]0;owned\x07", "a\rb", "a\x0bb", "\u2028", "\x9b31m", "\u202ex"]
)
def test_console_passes_no_control_character_of_a_client_to_a_terminal(text: str) -> None:
    stream = lines("console")
    get_logger("magnetar.x").info("closed", client=text)
    shown = stream.getvalue().removesuffix("\n")
    assert shown.isprintable()
    assert json.loads(shown.rpartition("client=")[2]) == text


def test_auto_is_json_where_nobody_watches() -> None:
    stream = lines("auto")
    get_logger("magnetar.x").info("a")
    assert stream.getvalue().startswith("{")


def test_lines_below_the_level_are_not_made() -> None:
    stream = lines("json", "warning")
    get_logger("magnetar.x").info("a")
    get_logger("magnetar.x").debug("b")
    get_logger("magnetar.x").error("c")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["c"]


def test_records_of_libraries_pass_through() -> None:
    stream = lines("json")
    logging.getLogger("a_library.server").info("listening on %s", 8080)
    assert json.loads(stream.getvalue())["event"] == "listening on 8080"


@pytest.mark.parametrize("level", ["debug", "info", "error"])
def test_requests_of_http_clients_are_not_logged(level: str) -> None:
    stream = lines("json", level)
    transport = httpx.MockTransport(lambda _request: httpx.Response(204))
    with httpx.Client(transport=transport) as client:
        client.get("http://broker-2/admin/v2/brokers/health")
    logging.getLogger("httpcore.connection").info("connected")
    assert stream.getvalue() == ""
    logging.getLogger("httpx").warning("odd")
    assert (stream.getvalue() != "") == (level != "error")


@pytest.mark.parametrize(
    ("role_log", "shown"),
    [
        ("NONE", "admin"),
        ("REDACTED", "[REDACTED]"),
        # As Pulsar 4.2.4 prints them.
        ("hash:SHA256", "SHA-256:jGl25bVBBBW96Qi9Te4V37Fnqchz/Eu4qB9vKrRIqRg="),
        ("hash:MD5", "MD5:ISMvKXpXpadDiUoOSoAfww=="),
    ],
)
def test_roles_are_shown_as_configured(role_log: str, shown: str) -> None:
    stream = lines("json", role_log=role_log)
    get_logger("magnetar.x").info("done", role="admin", original=None, topic="admin")
    line = json.loads(stream.getvalue())
    assert (line["role"], line["original"], line["topic"]) == (shown, None, "admin")
    stream = lines("console", role_log=role_log)
    get_logger("magnetar.x").info("done", original="admin")
    assert shown in stream.getvalue()
    assert ("admin" in stream.getvalue()) == (role_log == "NONE")
