"""Transactions: coordinators of the cluster, and one object per transaction."""
