"""The Kubernetes operator: reconciles clusters, tenants, namespaces, topics and Spark jobs.

Pure planners compare the desired with the observed state and return ordered actions; one engine
(`engine.reconciler`) observes, plans, acts and writes the status. Nothing is ever deleted because
something is absent.
"""
