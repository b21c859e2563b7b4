"""The protocols of TLS, and the interval of the check for changed files."""

from typing import Final

TLS_1_2: Final = "TLSv1.2"
TLS_1_3: Final = "TLSv1.3"
PROTOCOLS: Final = (TLS_1_2, TLS_1_3)
REFRESH_S_DEFAULT: Final = 10.0
