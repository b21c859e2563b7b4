"""The Kubernetes API: client, kinds, Events, the leader's Lease and the operator's permissions."""
