"""subscribe_each.py URL NAME TOPIC...: a durable subscription from the beginning of each."""

import sys

import pulsar


def main(url: str, name: str, *topics: str) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    for topic in topics:
        client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest).close()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
