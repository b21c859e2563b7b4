"""Subscriptions: each has a cursor and a dispatcher that hands entries to its consumers."""
