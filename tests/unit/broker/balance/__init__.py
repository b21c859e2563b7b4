"""The balancer."""
