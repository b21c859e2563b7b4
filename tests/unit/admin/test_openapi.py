"""The OpenAPI document and its page."""

import re

from .support import Admin


async def test_every_route_is_described(admin: Admin) -> None:
    document = (await admin.call("GET", "/openapi.json")).json()
    tags = {tag["name"] for tag in document["tags"]}
    operations = 0
    for path, methods in document["paths"].items():
        for operation in methods.values():
            operations += 1
            assert operation["summary"], path
            assert set(operation["tags"]) <= tags, path
            described = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert described == set(re.findall(r"\{(\w+)\}", path)), path
            assert all(parameter["description"] for parameter in operation["parameters"])
    assert operations > 100
    stats = document["paths"]["/admin/v2/{domain}/{tenant}/{namespace}/{topic}/stats"]["get"]
    assert "getEarliestTimeInBacklog" in {each["name"] for each in stats["parameters"]}


async def test_the_page_needs_nobody_else(admin: Admin) -> None:
    page = await admin.call("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in page.text
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", page.text)
