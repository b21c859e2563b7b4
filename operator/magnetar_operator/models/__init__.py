"""The six kinds of `magnetar.io/v1alpha1` as typed models, and the CRDs that are made from them.

A field's type, range, default and description stand in one place, beside the field. `kinds` lists
the kinds, `values` converts policies between manifests and REST, `crdgen` writes `crds/*.yaml`.
"""
