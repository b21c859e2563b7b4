"""Payload compression in the forms that clients use: raw LZ4 blocks, zlib, ZSTD frames, raw Snappy.

Decompression is bounded before it starts: the output must have exactly the `uncompressed_size` of
the metadata, which a maximum caps. A small payload that claims or hides a large one (a bomb)
therefore costs no memory.

The codecs of cramjam and zstandard are imported on first use. They take 2 MiB, and a broker needs
them only to look into compressed batches.
"""

import threading
import zlib
from functools import cache
from typing import Final

from magnetar.wire._pb.PulsarApi_pb2 import CompressionType
from magnetar.wire.framing import MalformedEntry

UNCOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Default cap of a payload: clients cap the compressed size, and batches compress well."""


class _Contexts(threading.local):
    """Reusable ZSTD contexts, one pair per thread: they are not thread-safe."""

    def __init__(self) -> None:
        import zstandard

        self.compressor = zstandard.ZstdCompressor()
        self.decompressor = zstandard.ZstdDecompressor()


@cache
def _contexts() -> _Contexts:
    return _Contexts()


def compress(compression: int, data: bytes) -> bytes:
    """Compresses by a `CompressionType`; the caller sets `uncompressed_size` to `len(data)`."""
    if compression == CompressionType.NONE:
        return data
    if compression == CompressionType.ZLIB:
        return zlib.compress(data)
    if compression == CompressionType.ZSTD:
        return _contexts().compressor.compress(data)
    if compression in (CompressionType.LZ4, CompressionType.SNAPPY):
        import cramjam

        if compression == CompressionType.LZ4:
            return bytes(cramjam.lz4.compress_block(data, store_size=False))
        return bytes(cramjam.snappy.compress_raw(data))
    raise ValueError(f"No compression has the number {compression}")


def decompress(
    compression: int, data: bytes, size_bytes: int, size_bytes_max: int = UNCOMPRESSED_BYTES_MAX
) -> bytes:
    """Decompresses to exactly `size_bytes`; raises MalformedEntry if the output differs."""
    if compression == CompressionType.NONE:
        return data
    if size_bytes > size_bytes_max:
        raise MalformedEntry(f"A payload of {size_bytes} bytes exceeds {size_bytes_max}")
    if compression == CompressionType.LZ4:
        plain = _lz4(data, size_bytes)
    elif compression == CompressionType.ZLIB:
        plain = _zlib(data, size_bytes)
    elif compression == CompressionType.ZSTD:
        plain = _zstd(data, size_bytes)
    elif compression == CompressionType.SNAPPY:
        plain = _snappy(data, size_bytes)
    else:
        raise MalformedEntry(f"No compression has the number {compression}")
    if len(plain) != size_bytes:
        raise MalformedEntry(f"The payload has {len(plain)} bytes where {size_bytes} were promised")
    return plain


def _corrupt(error: Exception) -> MalformedEntry:
    return MalformedEntry(f"The payload cannot be decompressed: {error}")


def _lz4(data: bytes, size_bytes: int) -> bytes:
    import cramjam

    # decompress_block, which allocates the buffer, would pad a short result with zeros.
    plain = bytearray(size_bytes)
    try:
        size = cramjam.lz4.decompress_block_into(data, plain, output_len=size_bytes)
    except cramjam.DecompressionError as error:
        raise _corrupt(error) from error
    return bytes(plain[:size])


def _zlib(data: bytes, size_bytes: int) -> bytes:
    # One byte more than expected distinguishes a longer stream from a complete one.
    decompressor = zlib.decompressobj()
    try:
        plain = decompressor.decompress(data, size_bytes + 1)
    except zlib.error as error:
        raise _corrupt(error) from error
    if not decompressor.eof:
        raise MalformedEntry("The payload is longer than promised, or cut off")
    return plain


def _zstd(data: bytes, size_bytes: int) -> bytes:
    import zstandard

    try:
        # zstandard obeys a size in the frame's header even if it exceeds `max_output_size`.
        if zstandard.frame_content_size(data) > size_bytes:
            raise MalformedEntry("The payload is longer than promised")
        return _contexts().decompressor.decompress(data, max_output_size=size_bytes)
    except zstandard.ZstdError as error:
        raise _corrupt(error) from error


def _snappy(data: bytes, size_bytes: int) -> bytes:
    import cramjam

    try:
        if cramjam.snappy.decompress_raw_len(data) != size_bytes:
            raise MalformedEntry("The payload is not as long as promised")
        plain = bytearray(size_bytes)
        return bytes(plain[: cramjam.snappy.decompress_raw_into(data, plain)])
    except cramjam.DecompressionError as error:
        raise _corrupt(error) from error
