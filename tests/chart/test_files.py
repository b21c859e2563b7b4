"""What needs no helm: nothing generated is stale, values fit the schema, alerts have a runbook."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from magnetar_operator.cluster.manifests.surroundings import RELABELINGS

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "magnetar"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
RUNBOOK = ROOT / "docs" / "run" / "runbook.md"


@pytest.fixture(scope="module")
def sync() -> ModuleType:
    """charts/sync.py, which is no part of any package."""
    sys.path.insert(0, str(ROOT / "charts"))
    try:
        spec = importlib.util.spec_from_file_location("chart_sync", ROOT / "charts" / "sync.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def schema() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return read


def test_what_is_generated_is_not_stale(sync: ModuleType) -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in sync.wanted().items()
        if (path.read_text() if path.exists() else None) != text
    ]
    assert not stale, "type `make chart`"


def test_the_schema_is_one_and_holds_for_the_values() -> None:
    Draft202012Validator.check_schema(schema())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert not list(Draft202012Validator(schema()).iter_errors(values))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_the_schema(example: Path) -> None:
    values = yaml.safe_load(example.read_text())
    assert not list(Draft202012Validator(schema()).iter_errors(values))


def test_every_value_is_described_and_no_other_is_let_in() -> None:
    """Every object says what may be in it, unless it is passed on to Kubernetes as it is."""
    bare = []

    def look(node: dict[str, Any], path: str) -> None:
        if not node.get("description"):
            bare.append(path)
        if "properties" in node and not path.startswith((".tls", ".auth.", ".auth", ".$defs.env")):
            assert node.get("additionalProperties") is False, path
        for name, child in node.get("properties", {}).items():
            look(child, f"{path}.{name}")

    look(schema(), "")
    for name, node in schema()["$defs"].items():
        look(node, f".$defs.{name}")
    assert [path for path in bare if not path.startswith(".$defs.env.")] == []


def test_every_default_has_its_place_in_the_schema() -> None:
    """A value that the schema does not know would be one that no user can set."""
    known = schema()

    def look(values: dict[str, Any], node: dict[str, Any], path: str) -> None:
        if "$ref" in node:
            node = known["$defs"][node["$ref"].rpartition("/")[2]]
        for name, value in values.items():
            if "properties" in node:
                assert name in node["properties"], f"{path}.{name}"
                if isinstance(value, dict):
                    look(value, node["properties"][name], f"{path}.{name}")

    look(yaml.safe_load((CHART / "values.yaml").read_text()), known, "")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((CHART / "alerts" / "magnetar.rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_alerts_and_the_runbook_go_together() -> None:
    sections = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules()]
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/run/runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_the_chart_has_the_programs_version() -> None:
    from magnetar import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    below = yaml.safe_load((CHART / "charts" / "crds" / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert chart["dependencies"][0]["version"] == below["version"]


def test_monitors_label_as_the_operators_do() -> None:
    """Dashboards and alerts find either cluster."""
    text = (CHART / "templates" / "podmonitors.yaml").read_text()
    begin = text.index("      relabelings:")
    block = text[begin : text.index("      {{- with", begin)]
    assert yaml.safe_load(block)["relabelings"] == RELABELINGS
