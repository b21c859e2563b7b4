"""Daily administration over the admin REST: tenants, namespaces, topics, subscriptions."""
