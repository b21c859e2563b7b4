"""The Kubernetes operator: makes clusters, tenants, namespaces and topics be what manifests say.

Pure planners compare what is wanted with what is there and give back ordered actions; thin handlers
(kopf) read, plan and carry out. Nothing is ever deleted because something is absent.
"""
