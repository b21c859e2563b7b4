"""Tenant, Namespace, Topic and Subscription resources: made and kept so through the admin REST.

`desired` reads manifests, `observed` says what a cluster has, `plan` compares both: all pure.
`admin_client`, `cluster_view`, `looking` and `carrying_out` talk to the cluster, `resource_status`
words the status, `reconcile` and `deletion` bring them together, `handlers` registers them.
"""
