"""Generated protobuf classes of Pulsar's protocol, committed so that no build needs protoc.

Made from `PulsarApi.proto` by the protoc of grpcio-tools with mypy-protobuf for the types:

    python -m grpc_tools.protoc -I services/magnetar/wire/_pb \
        --python_out=services/magnetar/wire/_pb --mypy_out=quiet:services/magnetar/wire/_pb \
        services/magnetar/wire/_pb/PulsarApi.proto

`tests/unit/wire/test_generated.py` runs the same and fails where the result differs.
"""
