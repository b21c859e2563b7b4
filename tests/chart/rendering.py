"""The chart, rendered by helm: its manifests, and what helm says to impossible values."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from tests.support.kube import Tool, tool

CHART: Final = Path(__file__).resolve().parents[2] / "charts" / "magnetar"
EXAMPLES: Final = {path.stem: path for path in sorted((CHART / "examples").glob("*.yaml"))}
RELEASE: Final = "demo"
Manifest = dict[str, Any]


def helm() -> Tool:
    return tool("helm")


@cache
def rendered(example: str = "", values: str = "{}") -> tuple[Manifest, ...]:
    """All manifests, with the values of an example and more as JSON."""
    chosen = ["-f", str(EXAMPLES[example])] if example else []
    text = helm()(
        *("template", RELEASE, CHART, *chosen, "-f", "-"),
        *("--api-versions", "monitoring.coreos.com/v1"),
        stdin=values,
    )
    return tuple(each for each in yaml.safe_load_all(text) if each)


def with_values(**values: Any) -> tuple[Manifest, ...]:
    return rendered(values=json.dumps(values))


def refused(values: dict[str, Any]) -> str:
    """What helm says; fails where it takes them."""
    done = helm().run("template", RELEASE, CHART, "-f", "-", stdin=json.dumps(values))
    assert done.returncode, f"{values} was taken"
    return done.stderr


def of_kind(manifests: tuple[Manifest, ...], kind: str) -> dict[str, Manifest]:
    """By name."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def pods(manifests: tuple[Manifest, ...]) -> Iterator[tuple[str, Manifest]]:
    """Every pod's spec, with the name of what makes it."""
    for each in manifests:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Pod":
            yield name, each["spec"]
        elif "template" in each.get("spec", {}):
            yield name, each["spec"]["template"]["spec"]
        elif each["kind"] == "CronJob":
            yield name, each["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def environment(container: Manifest) -> dict[str, str | None]:
    return {each["name"]: each.get("value") for each in container.get("env", ())}
