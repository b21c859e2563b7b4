"""The six kinds of `magnetar.io/v1alpha1` as typed models, from which the CRDs are generated.

A field's type, range, default and description are in one place, beside the field. `kinds` lists the
kinds, `values` converts policies between manifests and the REST, `crdgen` writes `crds/*.yaml`.
"""
