"""The processes of a cluster: broker, bookie and autorecovery.

The modules here assemble the processes of `magnetar broker`, `magnetar bookie` and `magnetar
autorecovery`. `local` runs a whole cluster with etcd on one machine, for trials and tests.
"""
