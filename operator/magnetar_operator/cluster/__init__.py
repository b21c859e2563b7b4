"""Reconciles MagnetarClusters: `observe` reads, `plan` decides, `act` carries the plan out.

`manifests` builds the wanted objects, and `status` describes the cluster. The operator removes or
restarts a bookie only while every ledger has all its copies.
"""
