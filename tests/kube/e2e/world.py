"""The cluster that the steps act on: kubectl, helm, REST from inside, and waits with deadlines.

REST is asked from a pod, not from here: so it works on any Kubernetes, and as a user's programs do.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, TypeVar

from tests.support.kube import Images, Tool, ToolError

CHART: Final = Path("charts") / "magnetar"
POLL_S: Final = 0.5
ASK_TIMEOUT_S: Final = 20.0
READY_S_MAX: Final = 180.0

ASK: Final = """
import json, os, ssl, sys, urllib.error, urllib.request
method, url, body = sys.argv[1:4]
request = urllib.request.Request(url, method=method, data=body.encode() or None)
request.add_header("Content-Type", "application/json")
trust, token = os.environ.get("TRUST_FILE"), os.environ.get("TOKEN_FILE")
if token:
    request.add_header("Authorization", "Bearer " + open(token).read().strip())
context = ssl.create_default_context(cafile=trust) if trust else None
try:
    with urllib.request.urlopen(request, timeout=15, context=context) as answer:
        print(json.dumps([answer.status, answer.read().decode()]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, error.read().decode()]))
"""

CLIENT: Final = """
import os, sys, pulsar
def connected(url):
    options = {}
    if trust := os.environ.get("TRUST_FILE"):
        options |= {"tls_trust_certs_file_path": trust, "tls_validate_hostname": True}
    if token := os.environ.get("TOKEN_FILE"):
        supplier = lambda: open(token).read().strip()
        options["authentication"] = pulsar.AuthenticationToken(supplier)
    return pulsar.Client(url, operation_timeout_seconds=30, **options)
"""
"""The beginning of programs that use the official client with the credentials of their pod."""

Found = TypeVar("Found")


class StepError(AssertionError):
    """What a step expected and did not find."""


def expect(holds: object, text: str) -> None:
    if not holds:
        raise StepError(text)


@dataclass
class World:
    """One namespace, one release or MagnetarCluster called `cluster`."""

    kubectl: Tool
    helm: Tool
    images: Images
    cluster: str
    asker: str = ""
    """The pod that REST is asked from."""
    has_tls: bool = False
    """Whether clients use TLS."""
    has_tokens: bool = False
    """Whether clients present tokens."""
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Said with the step that runs."""
        self.notes.append(text)

    def eventually(
        self, what: str, look: Callable[[], Found | None], timeout_s: float = READY_S_MAX
    ) -> Found:
        """What `look` finds; asked until it is neither None nor False."""
        deadline = time.monotonic() + timeout_s
        last: Exception | None = None
        while time.monotonic() < deadline:
            try:
                found = look()
            except (ToolError, StepError, subprocess.TimeoutExpired, OSError) as error:
                last, found = error, None
            if found is not None and found is not False:
                return found
            time.sleep(POLL_S)
        raise StepError(f"{what}: not within {timeout_s:.0f} s" + (f" ({last})" if last else ""))

    # -- kubectl ---------------------------------------------------------------------------------

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        done = self.kubectl.run("get", kind, name, "-o", "json", "--ignore-not-found")
        if done.returncode:
            raise StepError(done.stderr.strip())
        return json.loads(done.stdout) if done.stdout.strip() else None

    def pods(self, component: str) -> list[dict[str, Any]]:
        labels = f"app=magnetar,cluster={self.cluster},component={component}"
        items: list[dict[str, Any]] = self.kubectl.json("get", "pods", "-l", labels)["items"]
        return [pod for pod in items if not pod["metadata"].get("deletionTimestamp")]

    def ready_pods(self, component: str) -> list[str]:
        return sorted(
            pod["metadata"]["name"]
            for pod in self.pods(component)
            if any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in pod["status"].get("conditions", ())
            )
        )

    def wait_ready(self, component: str, count: int, timeout_s: float = READY_S_MAX) -> list[str]:
        def look() -> list[str] | None:
            ready = self.ready_pods(component)
            return ready if len(ready) == count == len(self.pods(component)) else None

        return self.eventually(f"{count} ready pods of {component}", look, timeout_s)

    @contextmanager
    def watched(self, kind: str, name: str, field: str) -> Iterator[Callable[[], list[str]]]:
        """All that a field (of a jsonpath) has been in the meantime, however short."""
        where = ("--namespace", self.kubectl.namespace, "get", kind, name, "--watch")
        command = [self.kubectl.program, *where, "-o", f"jsonpath=[{field}]{{'\\n'}}"]

        def told() -> list[str]:
            return [line.strip()[1:-1] for line in Path(out.name).read_text().splitlines()]

        with NamedTemporaryFile() as out, subprocess.Popen(command, stdout=out) as watch:
            try:
                self.eventually(f"the watch of {kind}/{name}", lambda: bool(told()))
                yield told
            finally:
                watch.kill()

    def delete_pod(self, name: str, *, kill: bool = True) -> str:
        """Gone without a farewell; returns its uid, which no successor has."""
        pod = self.find("pod", name)
        expect(pod, f"no pod {name}")
        at_once = ("--grace-period=0", "--force") if kill else ()
        self.kubectl("delete", "pod", name, "--wait=false", *at_once)
        return str(pod["metadata"]["uid"]) if pod else ""

    # -- REST and commands, from inside ------------------------------------------------------------

    @property
    def admin_url(self) -> str:
        scheme, port = ("https", 8443) if self.has_tls else ("http", 8080)
        return f"{scheme}://{self.cluster}-broker:{port}"

    @property
    def service_url(self) -> str:
        scheme, port = ("pulsar+ssl", 6651) if self.has_tls else ("pulsar", 6650)
        return f"{scheme}://{self.cluster}-broker:{port}"

    def exec(self, pod: str, *command: str, timeout_s: float = 60.0) -> str:
        return self.kubectl("exec", pod, "--", *command, timeout_s=timeout_s)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON (or text) of the admin REST."""
        text = "" if body is None else json.dumps(body)
        answer = self.exec(
            self.asker, "python", "-c", ASK, method, self.admin_url + path, text,
            timeout_s=ASK_TIMEOUT_S,
        )  # fmt: skip
        status, content = json.loads(answer)
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content

    def get(self, path: str) -> Any:
        status, content = self.ask("GET", path)
        expect(status == 200, f"GET {path}: {status} {content}")
        return content

    # -- helm ------------------------------------------------------------------------------------

    def chart_values(self, **more: Any) -> str:
        return json.dumps({**self.images.helm_values(), **more})

    def install(self, verb: str, *args: str, values: str) -> str:
        """`install` or `upgrade`; values as JSON, from the standard input."""
        return self.helm(
            verb,
            self.cluster,
            str(CHART),
            "-f",
            "-",
            *args,
            stdin=values,
            timeout_s=READY_S_MAX + 60,
        )

    def uninstall(self) -> None:
        """Until its pods are gone, too: a StatefulSet made anew in the meantime finds their names
        taken, and Kubernetes 1.34 may then forget to try again."""
        wait = ("--cascade=foreground", "--wait", f"--timeout={READY_S_MAX:.0f}s")
        self.helm("uninstall", self.cluster, *wait, timeout_s=READY_S_MAX + 60)
