"""Tasks of a run: how each prompt of a set becomes requests, the same way for every command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from inference.text import Tokenizer
from outrider.client.client import Client
from outrider.measure.sets import Item
from outrider.options.groups import SamplingOptions
from outrider.text.completion import Request
from outrider.text.parameters import Parameters
from outrider.text.prompts import Prompt, make_request


class Task(NamedTuple):
    """A prompt of a run, which may be a conversation.

    request: the request of the next turn, after the answers to earlier ones. Raises PromptTooLong.
    """

    set: str
    kind: str
    name: str
    request: Callable[[Sequence[str]], Request]
    turns: int


def tasks_of(items: Sequence[Item], text: SamplingOptions, client: Client) -> list[Task]:
    """The prompts that the target takes: one with a schema needs a target that follows it.

    text: sampling and length; prompt i uses seed + i
    """
    rules = client.target.description.rules
    return [
        Task(*item[:3], partial(_request, item, text, client, index), len(item.turns))
        for index, item in enumerate(items)
        if item.schema is None or rules
    ]


def _request(
    item: Item, text: SamplingOptions, client: Client, index: int, answers: Sequence[str]
) -> Request:
    parameters = Parameters(
        max_tokens=text.max_new_tokens, temperature=text.temperature, top_k=text.top_k,
        top_p=text.top_p, seed=(text.seed or 0) + index, schema=item.schema,
    )  # fmt: skip
    return make_request(
        client.text_model, _prompt(item, answers, client.tokenizer), parameters, index
    )


def _prompt(item: Item, answers: Sequence[str], tokenizer: Tokenizer) -> Prompt:
    """The next turn's prompt: messages, or their texts where the model has no chat template."""
    messages = [{"role": "system", "content": item.system}] if item.system else []
    for question, answer in zip(item.turns, answers, strict=False):
        messages += [{"role": "user", "content": question}]
        messages += [{"role": "assistant", "content": answer}]
    messages += [{"role": "user", "content": item.turns[len(answers)]}]
    return (
        messages if tokenizer.template else "\n\n".join(message["content"] for message in messages)
    )
