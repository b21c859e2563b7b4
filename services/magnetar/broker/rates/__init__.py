"""Rates: how fast producers may publish, subscriptions are served and consumers may subscribe."""
