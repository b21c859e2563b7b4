"""A cluster of processes on this machine: etcd, bookies, brokers, each with its log.

What runs is written down in the cluster's directory, so that any later command (or test) finds it
again. Only processes that are noted there are ever signalled, and only after a look whether the
process of that number is still the one that was started.
"""
