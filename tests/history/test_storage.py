"""A stored history is read back unchanged; any other file is refused."""

from pathlib import Path

import pytest
from tests.history.storage import Malformed, Writer, read, write
from tests.history.story import Story


def test_the_files_of_several_clients_are_one_history_in_the_order_of_time(tmp_path: Path) -> None:
    story = Story()
    session = story.subscribed()
    sent = story.sent()
    story.got(session, sent)
    story.acked(session, sent)
    story.sought(session)
    story.nacked(session, sent)
    story.drained()
    paths = [tmp_path / "one.jsonl", tmp_path / "other.jsonl"]
    for number, path in enumerate(paths):
        write(path, story.events[number::2])
    assert read(*paths) == story.events


def test_half_a_line_of_a_client_that_was_killed_is_left_out(tmp_path: Path) -> None:
    story = Story()
    story.sent()
    path = tmp_path / "history.jsonl"
    with Writer(path) as writer:
        for event in story.events:
            writer.write(event)
    with path.open("a") as output:
        output.write('["Produced","per')
    assert read(path) == story.events


@pytest.mark.parametrize(
    "text", ["", "{}\n", '{"history":99}\n', '{"history":1}\n["Guessed",1]\n', '{"history":1}\n[\n']
)
def test_what_is_no_history_of_this_version_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(Malformed):
        read(path)
