"""Fixtures: the admin REST of a broker in memory."""

from collections.abc import AsyncIterator

import httpx
import pytest

from magnetar.admin.app import create_app
from magnetar.admin.metrics.page import MetricsPage

from .support import Admin, start_service, stop_service


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    service = await start_service()
    page = MetricsPage(service)
    transport = httpx.ASGITransport(create_app(service, page))
    async with httpx.AsyncClient(transport=transport, base_url=service.http_url) as http:
        yield Admin(service, page, http)
    await stop_service(service)
