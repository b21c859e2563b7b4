"""MagnetarCluster: what should be there (`manifests`), what is (`observe`), what to do (`plan`).

`plan` is pure: it compares and gives back ordered actions; `act` carries them out; `handlers` ties
them together and tells the status. No bookie is removed, and none restarted by us, unless every
ledger has its copies.
"""
