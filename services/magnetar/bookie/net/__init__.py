"""Bookies over TCP: the protocol (no IO), the server beside a bookie, and the client."""
