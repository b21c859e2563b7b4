"""topics URL TOPIC COUNT: topics with one subscription and one message each, then left alone."""

import sys

from tests.bench.clients.connection import connect


def main(url: str, topic: str, count: int) -> None:
    client = connect(url)
    for index in range(count):
        name = f"{topic}-{index}"
        client.subscribe(name, "idle").close()
        producer = client.create_producer(name)
        producer.send(b"one message")
        producer.close()
    client.close()
    print("{}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
