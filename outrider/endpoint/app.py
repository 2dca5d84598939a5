"""The HTTP application: the OpenAI interface, health, metrics and version, behind one key check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from grpc_comm.client.connection import CONNECT_SECONDS
from inference.errors import OutriderError
from outrider.endpoint.access import BodyBound, HeadCheck, KeyCheck, OriginCheck
from outrider.endpoint.answers import Health, Release, responses
from outrider.endpoint.failures import ApiError, add_failures
from outrider.endpoint.openai_routes import openai_routes
from outrider.endpoint.page_routes import add_page, page_routes
from outrider.endpoint.target_manager import TargetManager
from outrider.version import outrider_version


def create_app(
    manager: TargetManager,
    keys: Sequence[str] = (),
    *,
    admin_keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
) -> FastAPI:
    """The application that answers with texts of the target in use.

    keys: one of them is needed for every route but /health; none: open
    admin_keys: keys, too; where there are any keys, one of these is needed to change the target
    hosts: names by which the server may be called, in lower case; empty for any
    origins: origins of pages elsewhere that may call it
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(manager.close, "the server ends")

    app = FastAPI(
        title="Outrider",
        version=outrider_version(),
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    add_failures(app)
    known = KeyCheck(keys, admin_keys)
    checked = [Depends(OriginCheck(origins)), Depends(known)]
    app.include_router(openai_routes(manager), dependencies=checked)
    app.include_router(page_routes(manager, [Depends(known.admin)]), dependencies=checked)
    _add_health(app, manager)

    @app.get("/version", dependencies=checked, responses=responses(Release))
    async def version() -> dict[str, str]:
        return {"version": outrider_version()}

    @app.get(
        "/metrics",
        dependencies=checked,
        responses=responses(None, "text/plain"),
        response_class=Response,
    )
    async def metrics() -> Response:
        texts = await manager.get()
        return Response(texts.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    add_page(app)
    app.add_middleware(BodyBound)
    app.add_middleware(HeadCheck, names=hosts)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app


def _add_health(app: FastAPI, manager: TargetManager) -> None:
    """/health: 200 while the target answers, else 503 with the reason."""

    @app.get(
        "/health",
        responses={
            200: {"model": Health},
            503: {"model": Health, "description": "the target is away"},
        },
    )
    async def health() -> Response:
        try:
            texts = await manager.get()
            await asyncio.to_thread(texts.client.target.probe, CONNECT_SECONDS)
        except (ApiError, OutriderError) as error:
            content: dict[str, Any] = {"status": "target unavailable", "reason": str(error)}
            return JSONResponse(content, 503)
        return JSONResponse({"status": "ok"})
