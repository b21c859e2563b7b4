"""Requests to the admin REST, and their answers in a form that two servers can share."""

import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

TIMEOUT_S = 30.0
MAX_REASON_LENGTH = 400
EPOCH_MS_NUMBER = re.compile(r"(?<=: )1[5-9]\d{11}\b")
EPOCH_MS = re.compile(r"\b1[5-9]\d{11}\b")
ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)?")
# The headers of a message that a REST answer carries.
MESSAGE_HEADERS = "x-pulsar-"
# Times; and what Pulsar 4.2.4 says of plain messages, too, as long as its buffer of transactions
# is not up to date.
VOLATILE_HEADERS = (
    "x-pulsar-broker-entry-metadata-timestamp",
    "x-pulsar-publish-time",
    "x-pulsar-txn-uncommitted",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def document(self) -> object:
        """Returns the body as JSON, or as text if it is none."""
        text = self.body.decode(errors="replace")
        try:
            return json.loads(text)
        except ValueError:
            return text


class Rest:
    """One connection to a server, opened again after the server has closed it."""

    def __init__(self, http_url: str) -> None:
        address = urlsplit(http_url)
        self._connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=TIMEOUT_S
        )

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """Sends a request to `/admin/v2/PATH`, or `/admin/PATH` if it begins with `v3/`; `body` is
        JSON, or absent if None."""
        target = f"/admin/{path}" if path.startswith("v3/") else f"/admin/v2/{path}"
        sent = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if sent is not None else {}
        try:
            self._connection.request(method, target, sent, headers)
            answer = self._connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # An idle connection that the server has closed. The request was not processed.
            self._connection.close()
            self._connection.request(method, target, sent, headers)
            answer = self._connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())


def observed(answer: Answer, names: Mapping[str, str], keep: list[str] | None) -> object:
    """What is compared of an answer: status, and document, reason or message."""
    if answer.status >= 400:
        return [answer.status, reason(answer, names)]
    headers: dict[str, object] = {
        name.lower(): replaced(value, names)
        for name, value in answer.headers.items()
        if name.lower().startswith(MESSAGE_HEADERS) and name.lower() not in VOLATILE_HEADERS
    }
    document = answer.document()
    if keep is not None and isinstance(document, dict):
        document = {name: document.get(name) for name in keep}
    if isinstance(document, list) and all(isinstance(each, str) for each in document):
        document = sorted(document)  # names, in whatever order a server keeps them
    text = replaced(json.dumps(document, sort_keys=True), names)
    found: list[object] = [answer.status, json.loads(text)]
    if "x-pulsar-property" in headers:
        headers["x-pulsar-property"] = json.loads(str(headers["x-pulsar-property"]))
    return [*found, headers] if headers else found


def reason(answer: Answer, names: Mapping[str, str]) -> object:
    document = answer.document()
    found = document.get("reason") if isinstance(document, dict) else document
    text = str(found).partition("\n")[0]
    return replaced(text, names)[:MAX_REASON_LENGTH]


def replaced(text: str, names: Mapping[str, str]) -> str:
    """Replaces the scenario's own names, and times."""
    for value, name in names.items():
        text = text.replace(value, name)
    text = EPOCH_MS_NUMBER.sub('"TIME"', ISO_TIME.sub("TIME", text))
    return EPOCH_MS.sub("TIME", text)
