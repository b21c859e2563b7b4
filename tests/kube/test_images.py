"""What the images promise (images/README.md), looked at in a pod as restricted as the chart's."""

import json
from typing import Any, Final

import pytest
from tests.kube.e2e.load import pod
from tests.support.kube import Images, Tool

from magnetar.cli.main import COMMANDS

pytestmark = [pytest.mark.kube_node, pytest.mark.timeout(240)]

ENDED_S_MAX: Final = 180
ROLES: Final = sorted(set(COMMANDS) - {"version", "demo"})
LOOK: Final = """
import importlib.metadata, importlib.util, json, os, pathlib, shutil, subprocess, sys
import magnetar
bill = json.loads(pathlib.Path("/opt/magnetar/sbom.cdx.json").read_text())
listed = {(item["name"], item["version"]) for item in bill["components"]}
installed = {(package.metadata["Name"].lower().replace("_", "-").replace(".", "-"), package.version)
             for package in importlib.metadata.distributions()}
compiled = pathlib.Path(importlib.util.cache_from_source(magnetar.__file__)).read_bytes()
try:
    pathlib.Path(magnetar.__file__).with_name("written").touch()
    writable = True
except OSError:
    writable = False
print(json.dumps({
    "user": os.getuid(),
    "writable": writable,
    "unchecked": int.from_bytes(compiled[4:8], "little") == 1,
    "tools": [tool for tool in ("pip", "uv", "gcc", "cc") if shutil.which(tool)],
    "modules": [name for name in ("pip", "setuptools") if importlib.util.find_spec(name)],
    "roles": {role: subprocess.run(["magnetar", role, "--help"], capture_output=True).returncode
              for role in sys.argv[1:]},
    "unlisted": sorted(installed - listed),
    "system": any(item["purl"].startswith("pkg:deb/debian/libc6@") for item in bill["components"]),
    "health": subprocess.run(["magnetar-health"], capture_output=True).returncode,
}))
"""


def said(kubectl: Tool, name: str) -> dict[str, Any]:
    """The last line of a pod that ended."""
    ended = "--for=jsonpath={.status.phase}=Succeeded"
    kubectl("wait", ended, f"--timeout={ENDED_S_MAX}s", f"pod/{name}", timeout_s=ENDED_S_MAX + 10)
    found: dict[str, Any] = json.loads(kubectl("logs", name).splitlines()[-1])
    return found


def test_what_is_in_the_image(kubectl: Tool, kube_namespace: str, images: Images) -> None:
    mine = kubectl.within(kube_namespace)
    mine.apply(pod("look", images.magnetar, ["-c", LOOK, *ROLES], {}, "kube-root-ca.crt"))
    assert said(mine, "look") == {
        "user": 10000,
        "writable": False,
        "unchecked": True,
        "tools": [],
        "modules": [],
        "roles": dict.fromkeys(ROLES, 0),
        "unlisted": [],  # of the bill of materials
        "system": True,
        "health": 1,  # nothing runs there
    }


def test_the_image_with_tools_has_the_official_client(
    kubectl: Tool, kube_namespace: str, images: Images
) -> None:
    mine = kubectl.within(kube_namespace)
    program = "import json, pulsar; print(json.dumps({'client': pulsar.__version__}))"
    mine.apply(pod("client", images.tools, ["-c", program], {}, "kube-root-ca.crt"))
    assert said(mine, "client")["client"]
