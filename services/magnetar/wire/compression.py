"""Payload compression in the forms that clients use: raw LZ4 blocks, zlib, ZSTD frames, raw Snappy.

Decompression is bounded before it starts: the metadata's `uncompressed_size` says how much comes
out, a maximum caps it, and what comes out otherwise is an error. So a small payload that claims or
hides a large one (a bomb) costs no memory.
"""

import threading
import zlib
from typing import Final

import cramjam
import zstandard

from magnetar.wire._pb.PulsarApi_pb2 import CompressionType
from magnetar.wire.framing import MalformedEntry

UNCOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Default cap of one payload: clients cap the compressed size, and batches shrink well."""


class _Contexts(threading.local):
    """ZSTD's working memory, reused: it must not be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor()
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def compress(compression: int, data: bytes) -> bytes:
    """The payload in the given `CompressionType`; its size goes into `uncompressed_size`."""
    if compression == CompressionType.NONE:
        return data
    if compression == CompressionType.LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if compression == CompressionType.ZLIB:
        return zlib.compress(data)
    if compression == CompressionType.ZSTD:
        return _contexts.compressor.compress(data)
    if compression == CompressionType.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    raise ValueError(f"No compression has the number {compression}")


def decompress(
    compression: int, data: bytes, size_bytes: int, size_bytes_max: int = UNCOMPRESSED_BYTES_MAX
) -> bytes:
    """The `size_bytes` that were compressed; MalformedEntry where they are not what comes out."""
    if compression == CompressionType.NONE:
        return data
    if size_bytes > size_bytes_max:
        raise MalformedEntry(f"A payload of {size_bytes} bytes exceeds {size_bytes_max}")
    try:
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
    except (cramjam.DecompressionError, zlib.error, zstandard.ZstdError) as error:
        raise MalformedEntry(f"The payload cannot be decompressed: {error}") from error
    if len(plain) != size_bytes:
        raise MalformedEntry(f"The payload has {len(plain)} bytes where {size_bytes} were promised")
    return plain


def _lz4(data: bytes, size_bytes: int) -> bytes:
    # The form that returns a buffer would pad a short result with zeros.
    plain = bytearray(size_bytes)
    return bytes(plain[: cramjam.lz4.decompress_block_into(data, plain, output_len=size_bytes)])


def _zlib(data: bytes, size_bytes: int) -> bytes:
    # One byte more than expected tells a longer stream from a complete one.
    decompressor = zlib.decompressobj()
    plain = decompressor.decompress(data, size_bytes + 1)
    if not decompressor.eof:
        raise MalformedEntry("The payload is longer than promised, or cut off")
    return plain


def _zstd(data: bytes, size_bytes: int) -> bytes:
    # A size in the frame's header would be obeyed whatever maximum is given.
    if zstandard.frame_content_size(data) > size_bytes:
        raise MalformedEntry("The payload is longer than promised")
    return _contexts.decompressor.decompress(data, max_output_size=size_bytes)


def _snappy(data: bytes, size_bytes: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(data) != size_bytes:
        raise MalformedEntry("The payload is not as long as promised")
    plain = bytearray(size_bytes)
    return bytes(plain[: cramjam.snappy.decompress_raw_into(data, plain)])
