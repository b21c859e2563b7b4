"""Completion in the shells themselves: commands, options, choices and topics, from the parsers."""

import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.cli.completion import SHELLS, Words, all_words, bash, fish, zsh
from magnetar.cli.main import COMMANDS, main

DEADLINE_S = 30.0
CHUNK_BYTES = 1 << 16

LIST_TOPICS = 'magnetar() { [ "$*" = "topics list a/b" ] && echo persistent://a/b/orders; }\n'
COMPLETE = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _magnetar; echo ${COMPREPLY[@]}'


@pytest.fixture(scope="module")
def words() -> list[Words]:
    return list(all_words())


@pytest.fixture(scope="module")
def script(words: list[Words], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "magnetar.bash"
    file.write_text(LIST_TOPICS + bash(words))
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
    assert completed(script, "completion", "zs") == ["zsh"]
    assert completed(script, "read", "--json", "-o", "he") == ["hex"]


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@needs("fish")
def test_fish(words: list[Words], tmp_path: Path) -> None:
    script = tmp_path / "magnetar.fish"
    lists = 'function magnetar; test "$argv" = "topics list a/b"; and echo persistent://a/b/t; end'
    script.write_text(f"{lists}\n{fish(words)}")
    lines = {
        "prod": ["produce"],
        "perf tr": ["transaction"],
        "perf produce --batch-max-b": ["--batch-max-bytes"],
        "consume t -t key": ["key_shared"],
        "subscriptions pe": ["peek"],
        "completion zs": ["zsh"],
        "read --json -o he": ["hex"],
        "read a/b/": ["a/b/t"],
        "perf produce --auth-p": [],
    }
    asked = "".join(f"; echo '{line}:'; complete -C 'magnetar {line}'" for line in lines)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"cd {tmp_path}; source {script}{asked}"],
        capture_output=True, text=True, check=True, timeout=DEADLINE_S,
        env={**os.environ, "HOME": str(tmp_path), "MAGNETAR_COMPLETE_TOPICS": "a/b"},
    )  # fmt: skip
    expected = [word for line, words in lines.items() for word in (f"{line}:", *words)]
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == expected
    assert done.stderr == ""


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, environment)  # noqa: S606  # it is one
        self.output = ""

    def type(self, text: str, expected: str) -> None:
        """Types, and waits until the output that follows has a text."""
        seen = len(self.output)
        os.write(self._file, text.encode())
        deadline = time.monotonic() + DEADLINE_S
        while expected not in self.output[seen:]:
            left_s = deadline - time.monotonic()
            assert left_s > 0, self.output
            if select.select([self._file], [], [], left_s)[0]:
                self.output += os.read(self._file, CHUNK_BYTES).decode(errors="replace")

    def close(self) -> None:
        os.close(self._file)  # the shell gets SIGHUP
        os.waitpid(self.pid, 0)


@pytest.fixture
def interactive_zsh(words: list[Words], tmp_path: Path) -> Iterator[Terminal]:
    script = tmp_path / "magnetar.zsh"
    script.write_text(LIST_TOPICS + zsh(words))
    environment = {
        "PATH": os.environ["PATH"], "TERM": "dumb", "PROMPT": "> ", "HOME": str(tmp_path),
        "MAGNETAR_COMPLETE_TOPICS": "a/b",
    }  # fmt: skip
    terminal = Terminal(["zsh", "-f", "-i"], environment)
    terminal.type(
        f"cd {tmp_path}; autoload -U compinit && compinit -u -D; source {script}; echo rea''dy\n",
        "ready",
    )
    yield terminal
    terminal.close()


@needs("zsh")
def test_zsh(interactive_zsh: Terminal) -> None:
    for typed, expected in (
        ("prod", "produce"),
        ("perf tr", "transaction"),
        ("perf produce --batch-max-b", "--batch-max-bytes"),
        ("consume t -t key", "key_shared"),
        ("completion fi", "fish"),
        ("read a/b/o", "a/b/orders"),
    ):
        *before, _ = typed.split(" ")
        line = " ".join(["magnetar", *before, expected])
        interactive_zsh.type(f"magnetar {typed}\t", line)
        interactive_zsh.type("\x15", "")  # empties the line


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*COMMANDS, "clear-backlog", "key_shared"):
        assert word in script
