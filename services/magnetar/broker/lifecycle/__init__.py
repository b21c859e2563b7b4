"""How long data is kept: retention, expiry, backlog quotas, unused subscriptions and topics.

Pure functions decide (`limits`, `quota`, `expiry`, `inactivity`, `outcome`). The enforcement
(`enforcement`, `upkeep`) and the prediction (`effect`) share them.
"""
