"""The client of these scripts, with the security that the environment names (`secured`)."""

import os

import pulsar


def connect(
    url: str, level: "pulsar.LoggerLevel" = pulsar.LoggerLevel.Warn, **options: int
) -> pulsar.Client:
    """Returns a client; `options` are its keyword arguments."""
    token_file = os.environ.get("BENCH_TOKEN_FILE")
    authentication = None
    if token_file is not None:
        with open(token_file, encoding="ascii") as file:
            authentication = pulsar.AuthenticationToken(file.read())
    return pulsar.Client(
        url,
        logger=pulsar.ConsoleLogger(level),
        authentication=authentication,
        tls_trust_certs_file_path=os.environ.get("BENCH_CA_FILE"),
        **options,
    )
