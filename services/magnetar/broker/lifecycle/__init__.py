"""How long things are kept: retention, expiry, backlog quotas, unused subscriptions and topics.

What is to happen is decided by pure functions (`limits`, `quota`, `expiry`, `inactivity`,
`outcome`), which the enforcement (`enforcing`, `upkeep`) and the prediction (`effect`) share.
"""
