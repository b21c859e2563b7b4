"""Policies as the broker keeps and applies them; what there is to be set is in `policies`."""
