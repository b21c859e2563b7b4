"""An HTTP service that publishes orders and streams them: FastAPI with one client per process.

    MAGNETAR_URL=pulsar://localhost:6650 uvicorn fastapi_orders:app

`POST /orders` answers when the order is stored. `GET /orders` is a stream of server-sent events:
each listener gets the orders from now on, from a reader of its own.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from magnetar.client import LATEST, Client, JsonSchema

TOPIC = "orders"


@dataclass
class Order:
    """What customers order."""

    item: str
    count: int


@asynccontextmanager
async def connected(app: FastAPI) -> AsyncIterator[None]:
    """Opens the client and its producer before the first request, and closes them at the end."""
    async with (
        Client.from_env() as client,
        client.producer(app.state.topic, schema=JsonSchema(Order)) as producer,
    ):
        app.state.client, app.state.producer = client, producer
        yield


app = FastAPI(lifespan=connected)
app.state.topic = TOPIC


@app.post("/orders", status_code=201)
async def publish(order: Order, request: Request) -> dict[str, str]:
    """Stores an order and returns its id."""
    message_id = await request.app.state.producer.send(order, key=order.item)
    return {"id": str(message_id)}


@app.get("/orders")
async def stream(request: Request, limit: int = 0) -> StreamingResponse:
    """Streams orders; `limit` ends the stream after so many, 0 never."""
    # Opened before the response begins: no order that follows is missed.
    reader = await request.app.state.client.reader(
        request.app.state.topic, LATEST, schema=JsonSchema(Order)
    )

    async def events() -> AsyncIterator[str]:
        sent = 0
        async with reader:
            async for message in reader:
                yield f"id: {message.id}\ndata: {json.dumps(asdict(message.value))}\n\n"
                sent += 1
                if sent == limit:
                    return

    return StreamingResponse(events(), media_type="text/event-stream")
