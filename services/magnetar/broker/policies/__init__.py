"""Policies as a broker stores and applies them; `magnetar.policies` defines them."""
