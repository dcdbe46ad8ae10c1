"""The OpenAPI document describes every route, and nothing else."""

from collections import Counter
from collections.abc import Iterator

import pytest
from starlette.routing import Route

from app.api.app import create_app
from app.api.openapi.document import openapi_document
from app.api.openapi.operations import OPERATIONS
from app.api.options import WHOLE
from app.api.service import Service
from app.api.settings import ServerSettings
from app.sampling.params import PARAMS
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.live_server import live_server

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def routes(settings: ServerSettings) -> list[Route]:
    app = create_app(Service(settings))
    return [route for route in app.routes if isinstance(route, Route)]


def offered() -> Counter[tuple[str, str]]:
    return Counter(
        (route.path, method.lower())
        for route in routes(ServerSettings())
        for method in route.methods or ()
        if method in METHODS
    )


def references(value: object) -> Iterator[str]:
    """Every $ref in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_route_is_described_once() -> None:
    described = Counter((path, row.method) for row in OPERATIONS for path in row.paths)
    assert described == offered()


def test_the_document_is_served_and_refers_to_what_it_has() -> None:
    with live_server(FakeEngine()) as server:
        document = server.client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= schemas
    identities = [op["operationId"] for item in document["paths"].values() for op in item.values()]
    assert len(identities) == len(set(identities)) == sum(offered().values())


def test_what_is_switched_off_is_left_out() -> None:
    settings = ServerSettings(ui=False)
    document = openapi_document(routes(settings), settings)
    assert isinstance(document["paths"], dict)
    assert "/" not in document["paths"]
    assert "/health" in document["paths"]


@pytest.mark.parametrize("name", ["ChatRequest", "CompletionRequest", "InfillRequest"])
def test_every_option_is_described(name: str) -> None:
    with live_server(FakeEngine()) as server:
        document = server.client.get("/openapi.json").json()
    options = {n for row in WHOLE.values() for n in row.names}
    options |= {n for param in PARAMS for n in (param.name, *param.aliases)}
    assert options - {"logprobs"} <= set(document["components"]["schemas"][name]["properties"])


def test_keys_are_told_about_only_where_they_are_needed() -> None:
    with live_server(FakeEngine(), ServerSettings(api_keys=("k",))) as server:
        assert server.client.get("/openapi.json").status_code == 401
        key = {"Authorization": "Bearer k"}
        paths = server.client.get("/openapi.json", headers=key).json()["paths"]
    assert paths["/health"]["get"]["security"] == []
    assert paths["/models"]["get"]["security"] == [{"bearer": []}, {"header": []}]
    assert "401" in paths["/models"]["get"]["responses"]
