"""Writes the chart's copied and generated files: `make chart`, or `--check`.

A chart cannot refer to files outside its folder, so the CustomResourceDefinitions of crds/ are
copied into its subchart. The table of README.md is generated from values.yaml (defaults) and
values.schema.json (descriptions), Grafana's dashboards from dashboards.yaml, and the operator's
roles from its list of permissions. `--check` writes nothing, and exits with 1 if a file is stale.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import dashboards
import yaml

from magnetar_operator.kube import rbac

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "charts" / "magnetar"
BEGIN: Final = "<!-- values: made by `make chart` -->"
END: Final = "<!-- end of values -->"
DEFAULT_CHARS_MAX: Final = 60


def wanted() -> dict[Path, str | None]:
    """Every generated file with its text; None: the file must not exist."""
    copies = CHART / "charts" / "crds" / "crds"
    files: dict[Path, str | None] = {
        copies / source.name: source.read_text() for source in (ROOT / "crds").glob("*.yaml")
    }
    files |= {file: None for file in copies.glob("*") if file not in files}
    files[CHART / "files" / "operator-rbac.yaml"] = rbac.text()
    boards = CHART / "dashboards"
    files |= {boards / name: text for name, text in dashboards.files().items()}
    files |= {file: None for file in boards.glob("*") if file not in files}
    readme = CHART / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    files[readme] = before + BEGIN + "\n" + table() + END + after
    return files


def table() -> str:
    """The values, one line each."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    lines = ["", "| Value | Default | Meaning |", "|---|---|---|"]
    lines += [
        f"| `{path}` | {shown(default)} | {text} |"
        for path, default, text in described(schema, schema, values, "")
    ]
    return "\n".join([*lines, "", ""])


def described(
    schema: dict[str, Any], node: dict[str, Any], values: Any, path: str
) -> Iterator[tuple[str, Any, str]]:
    """The leaves below `node`: path, default, description."""
    for name, child in node["properties"].items():
        text = child.get("description", "")
        target = child
        if "$ref" in child:
            target = schema["$defs"][child["$ref"].rpartition("/")[2]]
            text = text or target.get("description", "")
        below = f"{path}.{name}" if path else name
        value = values.get(name) if isinstance(values, dict) else None
        if text.startswith(("Refused", "Helm's own")):
            continue
        if target.get("properties") and target.get("type") == "object" and value is not None:
            yield from described(schema, target, value, below)
        else:
            yield below, value, text.replace("|", "\\|")


def shown(default: Any) -> str:
    """A default as the table has it."""
    if default is None:
        return ""
    text = default if isinstance(default, str) and default else json.dumps(default)
    return f"`{text}`" if len(text) <= DEFAULT_CHARS_MAX else "see values.yaml"


def main(check: bool) -> int:
    """Writes what is not as it should be, or only says so."""
    stale = 0
    for path, text in wanted().items():
        if (path.read_text() if path.exists() else None) == text:
            continue
        stale += 1
        name = path.relative_to(ROOT)
        if check:
            sys.stderr.write(f"{name} is stale: type `make chart`\n")
        elif text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            sys.stdout.write(f"{name} written\n")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
