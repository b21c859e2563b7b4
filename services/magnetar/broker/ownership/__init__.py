"""Which broker serves which topic: bundles, claims, look-ups and moves."""
