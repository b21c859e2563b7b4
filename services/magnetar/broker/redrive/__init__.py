"""Redrive: moves dead letters from a subscription back to the topics that they come from."""
