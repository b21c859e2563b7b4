"""The reconciliation engine that all kinds share; `reconciler` has the steps."""
