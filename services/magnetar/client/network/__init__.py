"""Connections to brokers: their pool, lookups, service URLs, TLS, retries."""
