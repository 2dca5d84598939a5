"""Answers of the OpenAI interface: objects, chunks of a stream, and counts, as plain data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from outrider.text.completion import Completion
from outrider.text.generation import Generation

FINISHED = {"stop": "stop", "length": "length", "spent": "length"}
"""The interface's word for why a text ended."""


@dataclass(frozen=True)
class Answer:
    """The frame of one answer: its id, kind and model."""

    chat: bool
    model: str
    of_each: int = 1  # texts of each prompt
    id: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, texts: Sequence[Generation]) -> dict[str, Any]:
        """The answer to a request that is not streamed. texts: in the order of their indices."""
        choices = [self._choice(index, text) for index, text in enumerate(texts)]
        name = "chat.completion" if self.chat else "text_completion"
        return self._frame(name) | {
            "choices": choices,
            "usage": usage(texts, self.of_each),
            "metrics": {"speculative_decoding": speculation([text.statistics for text in texts])},
        }

    def chunk(
        self, index: int, text: str, finish: str | None = None, *, first: bool = False
    ) -> dict[str, Any]:
        """A chunk of the stream: text of the choice `index`, and why it ended in its last one."""
        choice: dict[str, Any] = {"index": index, "finish_reason": finish, "logprobs": None}
        if self.chat:
            delta = {"role": "assistant"} if first else {}
            choice["delta"] = delta | ({"content": text} if text or first else {})
        else:
            choice["text"] = text
        return self._frame(self._chunk_name) | {"choices": [choice]}

    def last(self, texts: Sequence[Generation]) -> dict[str, Any]:
        """The chunk behind the text: counts of tokens, and of the candidates among them."""
        return self._frame(self._chunk_name) | {
            "choices": [],
            "usage": usage(texts, self.of_each),
            "metrics": {"speculative_decoding": speculation([text.statistics for text in texts])},
        }

    @property
    def _chunk_name(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _choice(self, index: int, text: Generation) -> dict[str, Any]:
        content: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text.text, "refusal": None}}
            if self.chat
            else {"text": text.text}
        )
        finish = FINISHED[text.finish_reason]
        return {"index": index, **content, "finish_reason": finish, "logprobs": None}

    def _frame(self, name: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.chat else "cmpl"
        return {
            "id": f"{prefix}-{self.id}",
            "object": name,
            "created": self.created,
            "model": self.model,
        }


def usage(texts: Sequence[Generation], of_each: int = 1) -> dict[str, Any]:
    """Tokens of the prompts, each counted once, and of all texts. of_each: texts of a prompt.

    Cached are tokens that the target had computed before.
    """
    firsts = texts[::of_each]
    prompt = sum(text.prompt_tokens for text in firsts)
    made = sum(len(text.token_ids) for text in texts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {
            "cached_tokens": sum(
                min(text.statistics.reused_tokens, text.prompt_tokens) for text in firsts
            )
        },
    }


def speculation(done: Sequence[Completion]) -> dict[str, Any]:
    """Counts of speculative decoding, with vLLM's names, so that aiperf prints its table.

    acceptance_histogram: [n] forwards in which n candidates were accepted
    """
    forwards = sum(one.forwards for one in done)
    drafted = sum(one.num_draft_tokens for one in done)
    accepted = sum(one.num_accepted_tokens for one in done)
    deepest = max((len(one.accepted_at_depth) for one in done), default=0)
    at_least = [forwards] + [
        sum(one.accepted_at_depth[depth] for one in done if depth < len(one.accepted_at_depth))
        for depth in range(deepest)
    ]
    histogram = [here - deeper for here, deeper in zip(at_least, [*at_least[1:], 0], strict=True)]
    return {
        "mean_acceptance_length": 1 + accepted / forwards if forwards else 0.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_steps": forwards,
        "num_spec_tokens": deepest,
    }
