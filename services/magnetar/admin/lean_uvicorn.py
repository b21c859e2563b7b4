"""What is used of uvicorn, without its command line.

Importing the package `uvicorn` imports its command, and click with it: 5 MiB that no broker needs.
Its parts do not need the package's own module, but for the name `Config` in it. So they are
imported beneath a stand-in for it, which is taken away again: whoever imports `uvicorn` later gets
all of it, with the same parts. Should a part of another uvicorn need more than that, all of uvicorn
is imported after all.
"""

import importlib
import importlib.util
import sys
from typing import Final

_PACKAGE: Final = "uvicorn"
_PARTS: Final = (
    # By and by, uvicorn would import these by their names.
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.server",
)


def _import_parts() -> None:
    """Imports the parts alone, unless uvicorn is here already or cannot be had that way."""
    spec = importlib.util.find_spec(_PACKAGE)
    if _PACKAGE in sys.modules or spec is None:
        return
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    try:
        vars(package)["Config"] = importlib.import_module("uvicorn.config").Config
        for part in _PARTS:
            importlib.import_module(part)
    except (ImportError, AttributeError):
        pass  # a part that is missing is imported below, with all of uvicorn
    finally:
        del sys.modules[_PACKAGE]


_import_parts()

# Found where they are: the package is not imported for parts that are there.
from uvicorn.config import Config  # noqa: E402
from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: E402
from uvicorn.server import Server  # noqa: E402

__all__ = ["Config", "H11Protocol", "Server"]
