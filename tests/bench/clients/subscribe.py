"""subscribe.py URL TOPIC NAME...: durable subscriptions from the beginning."""

import sys

import pulsar


def main(url: str, topic: str, *names: str) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    for name in names:
        client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest).close()
    client.close()
    print("{}")


if __name__ == "__main__":
    main(*sys.argv[1:])
