"""The HTTP application: the OpenAI interface, health, metrics and version, behind one key check."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from grpc_comm.client.connection import CONNECT_SECONDS
from inference.errors import OutriderError
from outrider.serve.access import KeyCheck
from outrider.serve.failures import add_failures
from outrider.serve.openai_routes import openai_routes
from outrider.serve.texts import Texts
from outrider.version import outrider_version


def create_app(
    texts: Texts,
    keys: Sequence[str] = (),
    *,
    hosts: Sequence[str] = ("*",),
    origins: Sequence[str] = (),
) -> FastAPI:
    """The application that answers with this client's texts.

    keys: one of them is needed for every route but /health; none: open
    hosts: names by which the server may be called
    origins: origins of pages elsewhere that may call it
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        texts.close()

    app = FastAPI(
        title="Outrider",
        version=outrider_version(),
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    add_failures(app)
    checked = [Depends(KeyCheck(keys))]
    app.include_router(openai_routes(texts), dependencies=checked)
    _add_health(app, texts)

    @app.get("/version", dependencies=checked)
    async def version() -> dict[str, str]:
        return {"version": outrider_version()}

    @app.get("/metrics", dependencies=checked)
    async def metrics() -> Response:
        return Response(texts.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app


def _add_health(app: FastAPI, texts: Texts) -> None:
    """/health: 200 while the target answers, else 503 with the reason."""

    @app.get("/health")
    def health() -> Response:
        try:
            texts.client.target.probe(CONNECT_SECONDS)
        except OutriderError as error:
            content: dict[str, Any] = {"status": "target unavailable", "reason": str(error)}
            return JSONResponse(content, 503)
        return JSONResponse({"status": "ok"})
