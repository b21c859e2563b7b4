"""The identity of a data directory: the bookie's id, and an incarnation drawn at formatting.

Formatting an empty directory writes the file `identity` as its last step. A directory with data but
no identity is not formatted: an empty disk under an old name must become another bookie, and a lost
identity must not turn old data into a new bookie's. The lock file excludes a second process and
contains the pid of the first.
"""

import re
import uuid
from pathlib import Path
from typing import Final

import msgspec
from google_crc32c import value

from magnetar.bookie.api import BookieError, BookieIdentity
from magnetar.disk.files import (
    UNREADABLE_ERRNOS,
    DataDirLocked,
    File,
    Files,
    replace_file,
)

FORMAT_VERSION: Final = 1
FILE_NAME: Final = "identity"
LOCK_NAME: Final = "lock"
JOURNAL_DIR: Final = "journal"
ENTRY_LOG_DIR: Final = "entry-logs"
INDEX_DIR: Final = "index"

_BOOKIE_ID: Final = re.compile(r"[-._:\w]{1,255}", re.ASCII)


class DataDirError(BookieError):
    """The data directory cannot be used; the text gives the reason and what to do."""


class Identity(msgspec.Struct, frozen=True):
    """The content of the identity file."""

    bookie_id: str
    incarnation: str
    format_version: int

    @property
    def public(self) -> BookieIdentity:
        """The identity that other components use."""
        return BookieIdentity(self.bookie_id, self.incarnation)

    @property
    def salt(self) -> bytes:
        """The incarnation's 16 bytes, as in the headers of the other files."""
        return uuid.UUID(self.incarnation).bytes


def encode(identity: Identity) -> bytes:
    """Returns a line of JSON and a line with its CRC-32C, so that humans can read it."""
    line = msgspec.json.encode(identity)
    return line + b"\ncrc32c:%08x\n" % value(line)


def decode(data: bytes, path: Path) -> Identity:
    """Decodes the identity file; raises DataDirError with its path."""
    line, _, rest = data.partition(b"\n")
    if rest != b"crc32c:%08x\n" % value(line):
        raise DataDirError(f"{path} at offset 0: the identity fails its CRC")
    try:
        version = msgspec.json.decode(line).get("format_version")
        if version != FORMAT_VERSION:
            raise DataDirError(
                f"{path}: data of format version {version}, this software reads "
                f"{FORMAT_VERSION}; use the release that wrote it or one that can upgrade it"
            )
        return msgspec.json.decode(line, type=Identity)
    except (msgspec.DecodeError, AttributeError) as error:
        raise DataDirError(f"{path} at offset 0: the identity cannot be read: {error}") from None


def lock_data_dir(files: Files, data_dir: Path) -> File:
    """Locks the directory until the file is closed; raises DataDirError if it is locked."""
    files.make_directory(data_dir)
    try:
        return files.lock(data_dir / LOCK_NAME)
    except DataDirLocked as error:
        raise DataDirError(str(error.strerror)) from None


def read_identity(files: Files, data_dir: Path) -> Identity | None:
    """Returns the directory's identity, None if it has none."""
    path = data_dir / FILE_NAME
    if FILE_NAME not in files.names(data_dir):
        return None
    try:
        data = files.read_all(path)
    except OSError as error:
        if error.errno not in UNREADABLE_ERRNOS:
            raise
        raise DataDirError(f"{path} cannot be read: {error.strerror}") from error
    return decode(data, path)


def open_identity(files: Files, data_dir: Path, bookie_id: str) -> tuple[Identity, bool]:
    """Returns the directory's identity, and whether it formatted the directory."""
    if not _BOOKIE_ID.fullmatch(bookie_id):
        raise DataDirError(f"invalid bookie id '{bookie_id}': use letters, digits and -._:")
    identity = read_identity(files, data_dir)
    if identity is not None:
        if identity.bookie_id != bookie_id:
            raise DataDirError(
                f"{data_dir} holds the data of bookie '{identity.bookie_id}', not of '{bookie_id}'"
            )
        return identity, False
    for name in (JOURNAL_DIR, ENTRY_LOG_DIR):
        if files.names(data_dir / name):
            raise DataDirError(
                f"{data_dir} holds data in {name}/ but no identity file: "
                "restore the file, or move the data away to begin a new bookie"
            )
    files.sync_directory(data_dir.parent)
    identity = Identity(bookie_id, str(uuid.uuid4()), FORMAT_VERSION)
    for name in (JOURNAL_DIR, ENTRY_LOG_DIR, INDEX_DIR):
        files.make_directory(data_dir / name)
    replace_file(files, data_dir / FILE_NAME, encode(identity))
    return identity, True
