"""The parts of uvicorn that a broker uses, imported without uvicorn's command line.

Importing the package `uvicorn` imports its command and with it click: 2 MiB of memory and 75 ms of
CPU at each start, which an idle broker has to fit into 50 MiB and 600 ms. uvicorn has no option for
that. Its parts need nothing of the package's own module but the name `Config`. This module
therefore imports them beneath a stand-in for the package, and removes the stand-in afterwards: a
later `import uvicorn` gets the whole package, with the same parts. If the parts of another release
of uvicorn need more than that, the whole package is imported.
"""

import importlib
import importlib.util
import sys
from typing import Final

_PACKAGE: Final = "uvicorn"
_PARTS: Final = (
    # Config.load() imports the first two by name.
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.server",
)


def _import_parts() -> None:
    """Imports the parts alone, unless uvicorn is imported already or the parts need all of it."""
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
        pass  # the imports below import the whole package
    finally:
        del sys.modules[_PACKAGE]


_import_parts()

# These are in sys.modules by now, so the package itself is not imported for them.
from uvicorn.config import Config  # noqa: E402
from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: E402
from uvicorn.server import Server  # noqa: E402

__all__ = ["Config", "H11Protocol", "Server"]
