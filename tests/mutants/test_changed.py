"""What `--changed` compares with: lines of files in a real repository."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.mutants.changed import VERSION_FILE, changed_lines, last_release


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / VERSION_FILE).parent.mkdir(parents=True)
    git(tmp_path, "init", "-q")
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    who = {
        f"GIT_{role}_{name}": "x@y"
        for role in ("AUTHOR", "COMMITTER")
        for name in ("NAME", "EMAIL")
    }
    command = ["git", "-c", "commit.gpgsign=false", *arguments]
    done = subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True, env={**os.environ, **who}
    )
    return done.stdout.strip()


def commit(root: Path, version: str, text: str) -> str:
    (root / VERSION_FILE).write_text(f'__version__ = "{version}"\n')
    (root / "text.py").write_text(text)
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "x")
    return git(root, "rev-parse", "HEAD")


def test_before_any_tag_the_release_is_the_commit_that_set_the_version(repository: Path) -> None:
    commit(repository, "0.1.0", "one\n")
    second = commit(repository, "0.2.0", "one\n")
    commit(repository, "0.2.0", "one\ntwo\n")
    assert last_release(repository) == second


def test_the_newest_version_tag_is_the_last_release(repository: Path) -> None:
    for version in ("0.9.0", "0.10.0"):
        commit(repository, version, version)
        git(repository, "tag", f"v{version}")
    commit(repository, "0.11.0", "three")
    git(repository, "tag", "nightly")
    assert last_release(repository) == "v0.10.0"


def test_changed_lines_are_those_added_or_edited_since(repository: Path) -> None:
    before = commit(repository, "0.1.0", "one\ntwo\nthree\nfour\n")
    commit(repository, "0.1.0", "one\n2\nthree\nfour\n")
    (repository / "text.py").write_text("one\n2\nfour\nfive\nsix\n")
    assert changed_lines(before, repository) == {"text.py": {2, 4, 5}}
