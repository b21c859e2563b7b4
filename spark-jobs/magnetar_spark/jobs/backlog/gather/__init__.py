"""Reads the facts of topics: metadata, bookies and, with an URL, brokers."""
