"""The program with Go's admin client: its module comes from the Go module proxy, once.

The program goes to the user's cache directory, under a name made from its sources: it is built when
that name is not there yet.
"""

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from .java_programs import cache_dir, digest, publish, run_tool

HERE = Path(__file__).parent / "go"
BUILD_TIMEOUT_S = 600
GO_TEST_TIMEOUT_S = 660
INSTALL = "apt-get install -y --no-install-recommends golang-go"


def prepare_go() -> Path:
    """Builds the program unless it is there; fails with the line to type without a Go toolchain."""
    go = shutil.which("go")
    if go is None:
        pytest.fail(f"go not found. Type: {INSTALL}")
    sources = sorted(path for path in HERE.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    target = cache_dir().with_name("interop-go") / f"admin-{digest(*sources)}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="admin-", dir=target.parent))
        command = [go, "build", "-C", str(HERE), "-o", str(made / "admin"), "."]
        run_tool(command, BUILD_TIMEOUT_S)
        publish(made, target)
    return target / "admin"


def go_scenario_names() -> list[str]:
    """The scenarios as the source lists them, known without a toolchain."""
    source = (HERE / "main.go").read_text()
    return re.findall(r'^\t"([a-z0-9-]+)": +\w+,$', source, re.MULTILINE)
