"""Completion in bash: commands, options, choices and topics, from the parsers."""

import subprocess
from pathlib import Path

import pytest

from magnetar.cli.completion import SHELLS, all_words, bash
from magnetar.cli.main import COMMANDS, main

LIST_TOPICS = 'magnetar() { [ "$*" = "topics list a/b" ] && echo persistent://a/b/orders; }\n'
COMPLETE = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _magnetar; echo ${COMPREPLY[@]}'


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "magnetar.bash"
    file.write_text(LIST_TOPICS + bash(list(all_words())))
    return file


def completed(script: Path, *words: str, namespace: str = "") -> list[str]:
    done = subprocess.run(
        ["bash", "-c", COMPLETE, str(script), "magnetar", *words],
        capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin:/bin", "MAGNETAR_COMPLETE_TOPICS": namespace},
    )  # fmt: skip
    return done.stdout.split()


def test_commands_options_choices_and_topics(script: Path) -> None:
    assert completed(script, "prod") == ["produce"]
    assert set(completed(script, "")) >= set(COMMANDS)
    assert completed(script, "perf", "tr") == ["transaction"]
    assert completed(script, "perf", "produce", "--batch-max-b") == ["--batch-max-bytes"]
    assert completed(script, "consume", "t", "-t", "key") == ["key_shared"]
    assert completed(script, "subscriptions", "pe") == ["peek"]
    assert completed(script, "read", "a/b/o") == []
    assert completed(script, "read", "a/b/o", namespace="a/b") == ["a/b/orders"]
    assert completed(script, "perf", "produce", "--auth-p") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*COMMANDS, "clear-backlog", "key_shared"):
        assert word in script
