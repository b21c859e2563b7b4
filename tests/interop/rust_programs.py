"""The scenarios of the Rust client, built once with cargo.

The program goes to the user's cache directory, under a name made from its sources: it is built when
that name is not there yet. The crate `pulsar` needs `protoc`.
"""

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from .java_programs import cache_dir, digest, publish, run_tool

HERE = Path(__file__).parent / "rust"
BUILD_TIMEOUT_S = 1_800
INSTALL = "apt-get install -y --no-install-recommends cargo protobuf-compiler"


def prepare_rust() -> Path:
    """Builds the scenarios unless they are there; fails with the line to type without tools."""
    cargo = shutil.which("cargo")
    if cargo is None or shutil.which("protoc") is None:
        pytest.fail(f"cargo or protoc not found. Type: {INSTALL}")
    inputs = [*sorted((HERE / "src").glob("*.rs")), HERE / "Cargo.toml", HERE / "Cargo.lock"]
    target = cache_dir().with_name("interop-rust") / f"scenarios-{digest(*inputs)}"
    if not target.exists():
        # Dependencies are compiled once for all versions of our sources.
        built = target.parent / "target"
        built.mkdir(parents=True, exist_ok=True)
        manifest = ["--locked", "--manifest-path", str(HERE / "Cargo.toml")]
        run_tool([cargo, "build", *manifest, "--target-dir", str(built)], BUILD_TIMEOUT_S)
        made = Path(tempfile.mkdtemp(prefix="scenarios-", dir=target.parent))
        shutil.copy2(built / "debug" / "scenarios", made / "scenarios")
        publish(made, target)
    return target / "scenarios"


def rust_scenario_names() -> list[str]:
    """The scenarios as the source lists them, known without a toolchain."""
    source = (HERE / "src" / "main.rs").read_text()
    return re.findall(r'^    \("([a-z0-9-]+)", ', source, re.MULTILINE)
