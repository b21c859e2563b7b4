"""Authorization: the rights of roles, and the decision whether a principal may do something.

Authentication, which finds the role of a peer, is in `magnetar.security`.
"""
