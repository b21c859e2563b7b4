"""subscribe_each URL NAME TOPIC...: a durable subscription from the beginning of each."""

import sys

import pulsar
from tests.bench.clients.connection import connect


def main(url: str, name: str, *topics: str) -> None:
    client = connect(url)
    for topic in topics:
        client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest).close()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
