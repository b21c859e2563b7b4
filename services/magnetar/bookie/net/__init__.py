"""Bookies over TCP: the protocol (pure: no IO), the bookie's server, and the client."""
