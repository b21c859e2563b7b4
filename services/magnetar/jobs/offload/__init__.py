"""Offload of ledgers: which are due, their files, and the deletion of their copies."""
