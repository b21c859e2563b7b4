"""The official Java programs: fetched once from Maven Central, compiled, and kept running in a JVM.

Jars go to the user's cache directory, under a name made from `java/pom.xml`; our few sources beside
them, under a name made from their text: both are built when that name is not there yet. Programs
are asked line by line, so that many scenarios and commands share one start of a JVM.
"""

import hashlib
import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "java"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_TIMEOUT_S = 840
COMPILE_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
# First start of the tests on a machine: fetching 280 MB belongs to the first test that needs it.
JAVA_TEST_TIMEOUT_S = 900
INSTALL = "apt-get install -y --no-install-recommends openjdk-17-jdk-headless maven"
JVM_FLAGS = [
    *("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    # An idle connection is given up before the server does it, in the middle of a request.
    "-Djdk.httpclient.keepalive.timeout=20",
]
OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.io", "java.util.zip", "java.nio", "jdk.internal.misc", "sun.net")
]


@dataclass(frozen=True, slots=True)
class JavaPrograms:
    """Class paths of the client's scenarios and of the tools."""

    java: str
    client: str
    tools: str

    def command(self, class_path: str, main: str, *arguments: str) -> list[str]:
        return [self.java, *JVM_FLAGS, *OPENS, "-cp", class_path, main, *arguments]


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "magnetar" / "interop-java"


def prepare() -> JavaPrograms:
    """Fetches and compiles what is not there yet; fails with the line to type without a JDK."""
    java = java_path()
    client = compiled(HERE / "src", jars("client"))
    admin = compiled(HERE / "tools", jars("tools"))
    return JavaPrograms(java, client, admin)


def java_path() -> str:
    """Returns the path of `java`; fails if it, the compiler or Maven is absent."""
    tools = {name: shutil.which(name) for name in ("java", "javac", "mvn")}
    absent = [name for name, path in tools.items() if path is None]
    if absent:
        pytest.fail(f"{', '.join(absent)} not found. Type: {INSTALL}")
    return str(tools["java"])


def accounts_command(*arguments: str) -> list[str]:
    """Returns the command of a role of `java/accounts`, compiled if it is not yet."""
    class_path = compiled(HERE / "accounts", jars("client"))
    return [java_path(), *JVM_FLAGS, *OPENS, "-cp", class_path, "Accounts", *arguments]


def digest(*files: Path) -> str:
    """A name for what is made from these files."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def run_tool(command: list[str], timeout_s: float) -> None:
    """Runs a compiler or a fetcher; fails the test with what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def publish(made: Path, target: Path) -> None:
    """Names a finished directory; where another run was quicker, its work is as good."""
    try:
        made.rename(target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(made)


def jars(profile: str) -> Path:
    """Fetches the jars of a profile of `pom.xml` unless they are there."""
    pom = HERE / "pom.xml"
    target = cache_dir() / f"{profile}-{digest(pom)}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{profile}-", dir=target.parent))
        goal = [PLUGIN, "-DincludeScope=runtime", f"-DoutputDirectory={made}"]
        run_tool(["mvn", "-q", "-B", "-f", str(pom), "-P", profile, *goal], FETCH_TIMEOUT_S)
        publish(made, target)
    return target


def compiled(source_dir: Path, jars: Path, release: str = "") -> str:
    """Compiles the sources unless they are; returns the class path, with the jars.

    `release` tells apart what is compiled for several releases of the jars.
    """
    sources = sorted(source_dir.glob("*.java"))
    target = cache_dir() / f"{source_dir.name}{release}-classes-{digest(*sources)}"
    if not target.exists():
        made = Path(tempfile.mkdtemp(prefix="classes-", dir=target.parent))
        options = ["--release", "17", "-Xlint:deprecation", "-Werror", "-cp", f"{jars}/*"]
        files = [str(source) for source in sources]
        run_tool(["javac", *options, "-d", str(made), *files], COMPILE_TIMEOUT_S)
        publish(made, target)
    return f"{target}{os.pathsep}{jars}/*"


def scenario_names() -> list[str]:
    """The scenarios as their sources register them, known without a JVM."""
    found: list[str] = []
    for source in sorted((HERE / "src").glob("*.java")):
        found += re.findall(r'suite\.add\("([a-z0-9-]+)"', source.read_text())
    return found


def admin_scenario_names() -> list[str]:
    """The scenarios of Java's admin client, known without a JVM."""
    source = (HERE / "tools" / "AdminScenarios.java").read_text()
    return re.findall(r'^ +add\("([a-z0-9-]+)"', source, re.MULTILINE)


class LineProcess:
    """A program that answers each line with a line."""

    def __init__(self, command: Iterable[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="java-answers", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    def ask(self, line: str, within_s: float) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        try:
            answer = self._answers.get(timeout=within_s)
        except queue.Empty:
            raise AssertionError(f"no answer to {line!r} in {within_s} s") from None
        assert answer, f"it ended at {line!r}:\n{self._log.read_text()[-4000:]}"
        return answer.decode()

    def kill(self) -> None:
        self._process.kill()
        self.close()

    def close(self) -> int:
        """Ends the input and waits for the end; returns the exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join(STOP_TIMEOUT_S)
        self._process.stdout.close()
        return code
