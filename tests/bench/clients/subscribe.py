"""subscribe URL TOPIC NAME...: durable subscriptions from the beginning."""

import sys

import pulsar
from tests.bench.clients.connection import connect


def main(url: str, topic: str, *names: str) -> None:
    client = connect(url)
    for name in names:
        client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest).close()
    client.close()
    print("{}")


if __name__ == "__main__":
    main(*sys.argv[1:])
