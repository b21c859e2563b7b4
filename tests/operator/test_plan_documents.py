"""The documents that `magnetar plan` reads: those of our kinds, and refusals that name a file."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_operator import plan_manifests
from magnetar_operator.kube.kinds import API_VERSION
from magnetar_operator.plan_manifests import CannotPlan, read_documents

Document = dict[str, Any]


def document(name: str, kind: str = "Topic", version: str = API_VERSION) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def names(documents: list[Document]) -> list[str]:
    return [document["metadata"]["name"] for document in documents]


def read(*documents: object) -> list[Document]:
    return read_documents(["-"], yaml.safe_dump_all(documents))


@pytest.mark.parametrize(
    "other",
    [
        document("t", version="example.com/v1"),
        document("t", version="v1"),
        {"kind": "Topic", "metadata": {"name": "t"}},
        None,
        "text",
        ["item"],
        {},
    ],
    ids=str,
)
def test_documents_of_other_kinds_are_skipped(other: object) -> None:
    """A file for kubectl may hold anything, also a kind of ours in a group of another product."""
    assert names(read(other, document("ours"))) == ["ours"]
    assert read(other) == []


def test_the_items_of_a_list_are_documents() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [document("a"), {"kind": "Pod"}]}
    assert names(read(listed, document("b"), {"kind": "List"})) == ["a", "b"]


@pytest.mark.parametrize(
    "bad",
    [
        document("x", kind="Nothing"),
        {"apiVersion": API_VERSION, "kind": "Topic"},
        {"apiVersion": API_VERSION, "kind": "Topic", "metadata": "x"},
        document(""),
    ],
    ids=str,
)
def test_a_document_of_our_group_without_kind_or_name_is_refused(bad: Document) -> None:
    with pytest.raises(CannotPlan, match="without a known kind and a name"):
        read(document("good"), bad)


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text(yaml.safe_dump(document("second")))
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(document("first")))
    (tmp_path / "c.json").write_text(json.dumps(document("third")))
    (tmp_path / "d.txt").write_text(yaml.safe_dump(document("ignored")))
    assert names(read_documents([str(tmp_path)])) == ["first", "second", "third"]
    assert names(read_documents([str(tmp_path / "c.json"), "-"], "")) == ["third"]


def test_what_cannot_be_read_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(CannotPlan, match=r"missing\.yaml"):
        read_documents([str(tmp_path / "missing.yaml")])
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(CannotPlan, match=r"bad\.yaml"):
        read_documents([str(tmp_path / "bad.yaml")])
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CannotPlan, match=r"binary\.yaml"):
        read_documents([str(tmp_path / "binary.yaml")])


def test_a_plan_has_a_bound_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_manifests, "DOCUMENTS_MAX", 3)
    documents = [document(name) for name in "abcd"]
    assert names(read(*documents[:3])) == ["a", "b", "c"]
    with pytest.raises(CannotPlan, match="4 documents are more than 3"):
        read(*documents)
