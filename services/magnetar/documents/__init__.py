"""JSON documents of the admin REST, declared once for the servers, the operator and the commands.

Fields that have a default may be absent from the answer of an older release.
"""
