"""Generated protobuf classes of Pulsar's protocol, committed so that no build needs protoc.

Made from `PulsarApi.proto` by `make proto`: the protoc of grpcio-tools, with mypy-protobuf (whose
`protoc-gen-mypy` must be on the PATH, or named with --plugin) for the types.
`tests/unit/wire/test_generated.py` makes them again and fails where the result differs.
"""
