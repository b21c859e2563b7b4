"""User name and password."""

import base64

from magnetar.client.auth.api import Authentication
from magnetar.client.errors import InvalidConfiguration


class Basic(Authentication):
    """Authenticates with a user name and a password."""

    def __init__(self, user: str, password: str) -> None:
        if not user or ":" in user or ":" in password:
            raise InvalidConfiguration(
                "User names and passwords may not contain ':', and a user name may not be empty"
            )
        self._pair = f"{user}:{password}".encode()

    @property
    def method(self) -> str:
        return "basic"

    async def credentials(self) -> bytes:
        return self._pair

    async def http_headers(self) -> dict[str, str]:
        return {"Authorization": f"Basic {base64.b64encode(self._pair).decode()}"}
