"""The right that each REST route needs, and the guard that demands it."""
