"""What a namespace or a topic may be told to do: one typed list, `registry.POLICIES`.

The admin REST, `docs/policies.md` and the CRDs of the operator are made from it, the broker
enforces what it says, and nothing about a policy is written down anywhere else. No IO here.
"""
