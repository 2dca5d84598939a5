"""The routes of the OpenAI interface."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from outrider.endpoint.answering import STREAM, answer_request, check_model
from outrider.endpoint.answers import ChatAnswer, ModelCard, ModelCards, TextAnswer, responses
from outrider.endpoint.chat_answers import ChatTeller, TextTeller
from outrider.endpoint.requests import ChatRequest, CompletionRequest
from outrider.endpoint.target_manager import TargetManager
from outrider.endpoint.text_runner import TextRunner


def openai_routes(manager: TargetManager) -> APIRouter:
    """Routes below /v1 that answer with the texts of the target in use."""
    router = APIRouter(prefix="/v1")

    @router.get("/models", responses=responses(ModelCards))
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_described(await manager.get())]}

    @router.get("/models/{name:path}", responses=responses(ModelCard))
    async def one_model(name: str) -> dict[str, Any]:
        texts = await manager.get()
        check_model(texts, name)
        return _described(texts)

    @router.post("/chat/completions", responses=responses(ChatAnswer, STREAM))
    async def chat(asked: ChatRequest, http: Request) -> Response:
        texts = await manager.get()
        return await answer_request(texts, asked, http, partial(ChatTeller, texts.client, asked))

    @router.post("/completions", responses=responses(TextAnswer, STREAM))
    async def completions(asked: CompletionRequest, http: Request) -> Response:
        texts = await manager.get()
        return await answer_request(texts, asked, http, partial(TextTeller, texts.client, asked))

    return router


def _described(texts: TextRunner) -> dict[str, Any]:
    return {
        "id": texts.client.model,
        "object": "model",
        "created": texts.created,
        "owned_by": "outrider",
        "max_model_len": texts.client.length,
    }
