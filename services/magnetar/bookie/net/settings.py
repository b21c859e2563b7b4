"""Deadlines and bounds of connections between bookies and their clients; times in seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Deadlines of a client's connection to a bookie."""

    connect_timeout_s: float = 2.0
    """Until the bookie's welcome."""
    timeout_s: float = 5.0
    """Deadline of any request; rounded up to the next tick of the connection's timer."""
    ping_idle_s: float = 10.0
    ping_read_only_s: float = 0.5
    """Of a read-only bookie. Clients send it no adds, so only a ping shows that it takes adds
    again; after an outage of the metadata store, all bookies are read-only for a moment."""
    retry_s_min: float = 0.05
    retry_s_max: float = 5.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Bounds of a bookie's server."""

    connections_max: int = 4096
    hello_timeout_s: float = 5.0
    frame_stall_s: float = 25.0
    """How long a frame under way may not grow (`wire.progress`)."""
    idle_timeout_s: float = 60.0
    """Clients ping more often than this."""
    unread_timeout_s: float = 30.0
    """How long a client may leave its answers unread."""
    sweep_s: float = 1.0
    drain_timeout_s: float = 10.0
