"""The source of a key: inline or a file, in the forms that Pulsar accepts.

The forms are tried in Pulsar's order: `data:` with optional `;base64`, `file:` with a path, the
path of an existing file, and base64. Source: AuthTokenUtils.readKeyFromUrl of Pulsar 4.2.

No error shows the text of a source, because it may be the key itself.
"""

import base64
import binascii
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from magnetar.security.errors import ConfigurationError
from magnetar.security.secret import Secret

SOURCE_BYTES_MAX: Final = 1 << 20
_PATH_CHARS_MAX: Final = 4_096

Stamp = tuple[int, int, int]
"""Modification time (ns), size and inode of a file: a different stamp means a different content."""


@dataclass(frozen=True, slots=True)
class KeySource:
    """The source of a key, a key set or a list of users."""

    setting: str
    """The setting that names it, for errors."""
    path: Path | None
    inline: Secret | None

    @classmethod
    def parse(cls, setting: str, text: Secret | str) -> "KeySource":
        """Parses the value of `setting`; raises ConfigurationError if it has none of the forms."""
        try:
            value = text.reveal_text() if isinstance(text, Secret) else text
        except UnicodeDecodeError:
            raise ConfigurationError(f"{setting} is not text") from None
        if value.startswith("data:"):
            return cls(setting, None, _inline_data(setting, value))
        if value.startswith("file:"):
            path = urlsplit(value).path
            if not path:
                raise ConfigurationError(f"{setting} is a file: URL without a path")
            return cls(setting, Path(os.fsdecode(unquote_to_bytes(path))), None)
        if _exists(value):
            return cls(setting, Path(value), None)
        try:
            return cls(setting, None, Secret(base64.b64decode(value, validate=True)))
        except (binascii.Error, ValueError):
            raise ConfigurationError(
                f"{setting} is neither a data: or file: URL, nor an existing file, nor base64"
            ) from None

    def read(self) -> bytes:
        """Returns the content; raises ConfigurationError if it cannot be read or is too large."""
        if self.path is None:
            return self.inline.reveal() if self.inline is not None else b""
        try:
            with self.path.open("rb") as file:
                content = file.read(SOURCE_BYTES_MAX + 1)
        except OSError as error:
            raise ConfigurationError(
                f"cannot read {self.path} of {self.setting}: {error.strerror}"
            ) from None
        if len(content) > SOURCE_BYTES_MAX:
            raise ConfigurationError(
                f"{self.path} of {self.setting} is larger than {SOURCE_BYTES_MAX} bytes"
            )
        return content

    def stamp(self) -> Stamp | None:
        """Returns the file's stamp; None if the source is inline or the file is missing."""
        if self.path is None:
            return None
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _inline_data(setting: str, url: str) -> Secret:
    """Decodes a `data:` URL (RFC 2397)."""
    described, comma, data = url.removeprefix("data:").partition(",")
    if not comma:
        raise ConfigurationError(f"{setting} is a data: URL without a comma")
    # `data:base64,`, which some pages of Pulsar write, is plain text in Pulsar 4.2, too.
    if not described.endswith(";base64"):
        return Secret(unquote_to_bytes(data))
    try:
        return Secret(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        raise ConfigurationError(f"{setting} is a data: URL whose base64 is malformed") from None


def _exists(text: str) -> bool:
    if not text or len(text) > _PATH_CHARS_MAX or "\0" in text:
        return False
    try:
        return Path(text).is_file()
    except OSError:
        return False
