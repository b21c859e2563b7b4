"""Generated protobuf classes of the part of etcd's v3 API that is used here.

Made from `magnetar_etcd.proto` by `make proto`, as those of `magnetar.wire._pb` are;
`tests/unit/metadata/test_etcd_generated.py` makes them again and fails where the result differs.
"""
