"""Reconciles Tenants, Namespaces, Topics and Subscriptions through their cluster's admin REST.

`references` resolves the target and its cluster, `desired` converts the spec, `observe` reads the
target, `plan` decides, `act` carries the plan out, and `status` describes the result. `finalizer`
and `deletion` delete the target. `claims` and `memory` prevent two resources from managing the same
target.
"""
