"""Loads by the official wheel, each a process of its own."""
