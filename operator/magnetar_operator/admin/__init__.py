"""The admin REST of a cluster as the operator calls it."""
