"""The scenarios of PulsarFlex, a client for Node.js in JavaScript alone, installed once with npm.

The package goes to the user's cache directory, under a name made from our files. Nothing is
compiled, and no script of a package runs.
"""

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from .java_programs import cache_dir, digest, publish, run_tool

HERE = Path(__file__).parent / "node"
FILES = ("package.json", "package-lock.json", "scenarios.js")
NPM_TIMEOUT_S = 300
NODE_TEST_TIMEOUT_S = 360
INSTALL = "apt-get install -y --no-install-recommends nodejs npm"


def prepare_node() -> list[str]:
    """Returns the command of the scenarios; fails with the line to type without Node.js."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.fail(f"node or npm not found. Type: {INSTALL}")
    inputs = [HERE / name for name in FILES]
    target = cache_dir().with_name("interop-node") / f"scenarios-{digest(*inputs)}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="scenarios-", dir=target.parent))
        for path in inputs:
            shutil.copy2(path, made / path.name)
        options = ["--prefix", str(made), "--ignore-scripts", "--no-audit", "--no-fund"]
        run_tool([npm, "ci", *options], NPM_TIMEOUT_S)
        publish(made, target)
    return [node, str(target / "scenarios.js")]


def node_scenario_names() -> list[str]:
    """The scenarios as the source lists them, known without Node.js."""
    source = (HERE / "scenarios.js").read_text()
    return re.findall(r"^  '([a-z-]+)': \w+,$", source, re.MULTILINE)
