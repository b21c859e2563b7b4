"""Step 8, compression: the codec of a producer, checked when the producer is created."""

from collections.abc import Callable
from typing import Final

from magnetar.client.errors import MissingExtra
from magnetar.client.options import Compression

LIBRARIES: Final = {
    Compression.LZ4: "cramjam",
    Compression.ZSTD: "zstandard",
    Compression.SNAPPY: "cramjam",
}


def check_codec(compression: Compression) -> None:
    """Raises MissingExtra if the library of the compression is not installed."""
    library = LIBRARIES.get(compression)
    if library is None:
        return
    try:
        __import__(library)
    except ImportError as error:
        raise MissingExtra(
            f"{compression.name} needs {library}: pip install 'magnetar[compression]', "
            "or use Compression.ZLIB, which is built in"
        ) from error


def compressor(compression: Compression) -> Callable[[bytes], bytes] | None:
    """Returns the function that compresses a payload; None without compression."""
    if compression == Compression.NONE:
        return None
    check_codec(compression)
    from magnetar.wire.compression import compress

    number = int(compression)
    return lambda data: compress(number, data)
