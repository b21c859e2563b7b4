"""Subscriptions: one cursor each, and a dispatcher that hands its entries to consumers."""
