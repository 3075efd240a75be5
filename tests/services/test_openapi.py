"""What a FastAPI service says of its keys and problems in OpenAPI."""

import json
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI

from aioretry.fastapi import CallerKey, add_problem_handlers, idempotency_key

PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


async def caller() -> str:
    """Who calls."""
    return "somebody"


Required = Annotated[CallerKey, Depends(idempotency_key(scope=caller))]
Optional = Annotated[CallerKey, Depends(idempotency_key(scope=caller, required=False))]


def service(*, has_handlers: bool = True) -> FastAPI:
    """An application with keys, required and not, in a router, too."""
    app = FastAPI()
    if has_handlers:
        add_problem_handlers(app)
    router = APIRouter(prefix="/inner")

    @app.post("/required")
    async def required(key: Required, count: int) -> None: ...

    @router.put("/optional")
    async def optional(key: Optional) -> None: ...

    @app.post("/both")
    async def both(key: Required, other: Optional) -> None: ...

    @app.get("/none")
    async def none() -> None: ...

    app.include_router(router)
    return app


def key_of(operation):
    """The parameter for the key."""
    (parameter,) = (one for one in operation["parameters"] if one["name"] == "Idempotency-Key")
    return parameter


def test_required_and_not():
    """The key is required where it is, and may be left out where it may."""
    paths = service().openapi()["paths"]
    for operation, required in [
        (paths["/required"]["post"], True),
        (paths["/inner/optional"]["put"], False),
    ]:
        parameter = key_of(operation)
        assert (parameter["in"], parameter["required"]) == ("header", required)
        assert parameter["schema"] == {"type": "string", "maxLength": 255}


def test_problems():
    """Operations with a key say how they fail, beside what FastAPI says of them."""
    schema = service().openapi()
    responses = schema["paths"]["/required"]["post"]["responses"]
    assert responses.keys() == {"200", "400", "409", "422", "503", "504"}
    for status in "400", "409", "503", "504":
        assert responses[status]["content"] == PROBLEM
        assert responses[status]["description"]
    assert responses["422"]["content"].keys() == {"application/json", *PROBLEM}
    assert schema["paths"]["/none"]["get"]["responses"].keys() == {"200"}
    assert "reason" in schema["components"]["schemas"]["Problem"]["required"]


def test_what_is_inside_is_not_told():
    """It is the same each time, and has no name of ours in it."""
    app = service()
    first = json.dumps(app.openapi())
    assert json.dumps(app.openapi()) == first
    assert "x-" not in first


def test_without_handlers():
    """The problems are not its own then; that a key is required can be read all the same."""
    schema = service(has_handlers=False).openapi()
    assert "x-" not in json.dumps(schema)
    assert "problem+json" not in json.dumps(schema)
    paths = schema["paths"]
    told = key_of(paths["/required"]["post"])["description"]
    assert told.endswith(" It is required.")
    assert told.startswith(key_of(paths["/inner/optional"]["put"])["description"])
