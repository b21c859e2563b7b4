"""Programs in Go from the Go module proxy, built once: with Go's clients, Dex, and cert-manager.

A program goes to the user's cache directory, under a name made from its sources: it is built when
that name is not there yet.
"""

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from .java_programs import cache_dir, digest, publish, run_tool

HERE = Path(__file__).parent / "go"
CERT_MANAGER = Path(__file__).parents[1] / "kube" / "cert_manager"
BUILD_TIMEOUT_S = 600
GO_TEST_TIMEOUT_S = 660
INSTALL = "apt-get install -y --no-install-recommends golang-go"


def prepare_go(program: str = "admin") -> Path:
    """Builds a program with Go's client unless it is there; `admin` is the module's own package."""
    package = HERE if program == "admin" else HERE / program
    sources = sorted(package.glob("*.go"))
    return _built(program, HERE, f"./{package.relative_to(HERE)}", sources)


def prepare_dex() -> Path:
    """Builds Dex, an OpenID Connect provider, unless it is there."""
    return _built("dex", HERE.parent / "dex", "github.com/dexidp/dex/cmd/dex", [])


def prepare_cert_manager() -> Path:
    """Builds the controllers of cert-manager that the chart needs, unless they are there."""
    return _built("cert-manager", CERT_MANAGER, ".", [CERT_MANAGER / "main.go"])


def _built(program: str, module: Path, package: str, sources: list[Path]) -> Path:
    """Builds a package of a module; fails with the line to type without a Go toolchain."""
    go = shutil.which("go")
    if go is None:
        pytest.fail(f"go not found. Type: {INSTALL}")
    inputs = [*sources, module / "go.mod", module / "go.sum"]
    target = cache_dir().with_name("interop-go") / f"{program}-{digest(*inputs)}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{program}-", dir=target.parent))
        # Without cgo no C compiler is needed; it would replace a codec and add a data base.
        command = ["env", "CGO_ENABLED=0", go, "build", "-C", str(module)]
        run_tool([*command, "-o", str(made / program), package], BUILD_TIMEOUT_S)
        publish(made, target)
    return target / program


def go_scenario_names(program: str = "") -> list[str]:
    """The scenarios as the source lists them, known without a toolchain."""
    source = (HERE / program / "main.go").read_text()
    return re.findall(r'^\t"([a-z0-9-]+)": +\w+,$', source, re.MULTILINE)
