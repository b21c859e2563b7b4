"""The policies that can be set on a namespace or a topic: one typed list, `registry.POLICIES`.

The admin REST, `docs/use/policies.md` and the operator's CRDs are generated from it, and the broker
enforces it. Nothing about a policy is declared anywhere else. No IO here.
"""
