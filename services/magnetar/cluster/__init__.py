"""The processes of a cluster: what each is made of, how it is put together, and a local one.

`magnetar bookie`, `magnetar broker` and `magnetar autorecovery` are wired here; `local` runs many
of them on one machine, with an etcd, for people to play with and for tests.
"""
