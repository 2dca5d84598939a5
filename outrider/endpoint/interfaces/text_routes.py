"""The routes below /v1 of OpenAI's and Anthropic's interfaces."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from outrider.endpoint.interfaces.answering import answer_request, check_model, read_requests
from outrider.endpoint.interfaces.chat_answers import ChatWriter, TextWriter
from outrider.endpoint.interfaces.messages import MessagesRequest, MessageWriter
from outrider.endpoint.interfaces.requests import ChatRequest, CompletionRequest
from outrider.endpoint.interfaces.responses import ResponseRequest, ResponseWriter
from outrider.endpoint.target_manager import TargetManager
from outrider.endpoint.text_runner import TextRunner


def text_routes(manager: TargetManager) -> APIRouter:
    """Return the routes that answer with outputs of the target in use."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_described(await manager.get())]}

    @router.get("/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        texts = await manager.get()
        check_model(texts, name)
        return _described(texts)

    @router.post("/chat/completions")
    async def chat(body: ChatRequest, http: HttpRequest) -> Response:
        texts = await manager.get()
        return await answer_request(texts, body, http, partial(ChatWriter, texts.client, body))

    @router.post("/completions")
    async def completions(body: CompletionRequest, http: HttpRequest) -> Response:
        texts = await manager.get()
        return await answer_request(texts, body, http, partial(TextWriter, texts.client, body))

    @router.post("/responses")
    async def response(body: ResponseRequest, http: HttpRequest) -> Response:
        texts, chat = await manager.get(), body.chat()
        return await answer_request(texts, chat, http, partial(ResponseWriter, texts.client, chat))

    @router.post("/messages")
    async def messages(body: MessagesRequest, http: HttpRequest) -> Response:
        texts = await manager.get()
        return await answer_request(texts, body.chat(), http, partial(MessageWriter, texts.client))

    @router.post("/messages/count_tokens")
    async def count(body: MessagesRequest) -> dict[str, int]:
        texts, chat = await manager.get(), body.chat()
        check_model(texts, chat.model)
        requests = await texts.read(partial(read_requests, texts, chat))
        return {"input_tokens": sum(len(request.ids) for request in requests)}

    return router


def _described(texts: TextRunner) -> dict[str, Any]:
    return {
        "id": texts.client.model,
        "object": "model",
        "created": texts.created,
        "owned_by": "outrider",
        "max_model_len": texts.client.length,
    }
