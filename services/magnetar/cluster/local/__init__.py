"""A cluster of processes on this machine: etcd, bookies and brokers, each with its log.

The cluster's directory has the list of the members and their processes, so that later commands and
tests find them. Only listed processes are signalled, and only after a check that the process with
that pid is the one that was started.
"""
