"""`make e2e`: what a new user does on a Kubernetes, step by step, with faults under load.

`__main__` runs the steps of `plain` (the chart alone) and `operated` (with the operator) in order
and times them; `world` is the cluster they act on; `load` and the program it runs in a pod send and
read messages all the while and know of each receipt, so that a loss is a number and not an
impression.
"""
