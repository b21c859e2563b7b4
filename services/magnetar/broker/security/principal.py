"""The roles on whose behalf a request is made."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """The role of a connection or an HTTP request; behind a proxy also that of its client.

    An operation must be permitted to both: a proxy gives its clients no rights, and a client gives
    its proxy none.
    """

    role: str
    original: str | None = None
    """The role of the proxy's client; None if `role` is the client's own."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that need the right, without repetition."""
        if self.original is None or self.original == self.role:
            return (self.role,)
        return (self.role, self.original)

    def __str__(self) -> str:
        if self.original is None:
            return self.role
        return f"{self.original} (through {self.role})"
