"""The help of the command line fits the terminal."""

import subprocess
import sys

import pytest

from magnetar.cli.main import main
from magnetar.cli.parser import COLUMNS_DEFAULT, terminal_columns


@pytest.mark.parametrize("columns", [70, 80, 120])
@pytest.mark.parametrize("arguments", [["--help"], ["standalone", "--help"], ["token", "--help"]])
def test_help_fits_the_columns_of_the_environment(
    arguments: list[str],
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        main(arguments)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("usage: magnetar")
    assert max(map(len, lines)) < columns


@pytest.mark.parametrize("value", ["", "0", "-1", "wide"])
def test_columns_that_are_no_number_are_ignored(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", value)
    code = "from magnetar.cli.parser import terminal_columns; print(terminal_columns())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == COLUMNS_DEFAULT  # the output is a pipe
    assert terminal_columns() > 0


def test_help_lists_all_commands_also_beside_one_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--help", "token"])
    text = capsys.readouterr().out
    assert "standalone" in text
    assert "operator" in text
