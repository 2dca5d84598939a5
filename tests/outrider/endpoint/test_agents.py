"""Agents and clients made by others, unmodified: they call functions and get objects of a schema.

The embedded model understands none of it. The target's grammar makes its arguments valid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from grpc_comm.server.server import BackgroundServer
from outrider.options.roles import TargetRole
from outrider.target.target import load_target
from tests.outrider.endpoint.conftest import Opened, opened
from tests.support.tool_families import ADD, with_template

pytestmark = pytest.mark.extended

LENGTH = 12_000
"""Tokens of a text: agents say much, and the embedded tokenizer has few words."""

LIMITS: dict[str, Any] = {"max_tokens": 400, "parallel_tool_calls": False}


class City(BaseModel, extra="forbid"):
    name: Literal["Oslo", "Rome"]
    river: Literal["Akerselva", "Tiber"]


def add(x: Literal[1, 2, 3], y: Literal[4, 5]) -> int:
    """Add two numbers.

    Args:
        x: the first
        y: the second
    """
    return x + y


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    directory = with_template(
        tmp_path_factory.mktemp("agents") / "model", "", max_position_embeddings=LENGTH
    )
    options: dict[str, Any] = {"model": str(directory)}
    role = TargetRole(port=0, batch=2, sequence_length=LENGTH, **options)
    with (
        BackgroundServer(load_target(role)) as target,
        opened(str(target.address), **options) as server,
    ):
        yield server


@pytest.fixture
def client(served: Opened) -> dict[str, Any]:
    """Arguments of a client of OpenAI's."""
    return {"base_url": f"{served.address}/v1", "api_key": "x", "max_retries": 0}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def test_openai_agents_call_a_function(
    served: Opened, client: dict[str, Any], kind: str, streamed: bool
) -> None:
    agents = pytest.importorskip("agents")

    async def answer() -> Any:
        api = openai.AsyncOpenAI(**client)
        agent = agents.Agent(
            name="adder",
            instructions="Add.",
            tools=[agents.function_tool(add)],
            model=getattr(agents, kind)(model=served.texts.client.model, openai_client=api),
            model_settings=agents.ModelSettings(tool_choice="required", temperature=0, **LIMITS),
            tool_use_behavior="stop_on_first_tool",
        )
        if not streamed:
            return await agents.Runner.run(agent, "1 and 4")
        run = agents.Runner.run_streamed(agent, "1 and 4")
        async for _ in run.stream_events():
            pass
        return run

    agents.set_tracing_disabled(True)
    assert int(asyncio.run(answer()).final_output) in range(5, 9)


@pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
@pytest.mark.parametrize("native", [False, True])
def test_pydantic_ai_gets_an_object(served: Opened, kind: str, native: bool) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models import openai as models
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{served.address}/v1", api_key="x")
    agent = pydantic_ai.Agent(
        getattr(models, kind)(served.texts.client.model, provider=provider),
        output_type=pydantic_ai.NativeOutput(City) if native else City,
        model_settings={"temperature": 0} | LIMITS,
    )
    assert isinstance(agent.run_sync("A city.").output, City)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor_gets_an_object(served: Opened, client: dict[str, Any], mode: str) -> None:
    instructor = pytest.importorskip("instructor")
    patched = instructor.from_openai(openai.OpenAI(**client), mode=instructor.Mode[mode])
    made = patched.chat.completions.create(
        model=served.texts.client.model,
        response_model=City,
        messages=[{"role": "user", "content": "A city."}],
        temperature=0,
        max_retries=0,
        **LIMITS,
    )
    assert isinstance(made, City)


def test_smolagents_call_a_function(served: Opened) -> None:
    smolagents = pytest.importorskip("smolagents")
    model = smolagents.OpenAIModel(
        model_id=served.texts.client.model,
        api_base=f"{served.address}/v1",
        api_key="x",
        temperature=1,
        seed=3,
        **LIMITS,
    )
    agent = smolagents.ToolCallingAgent(
        tools=[smolagents.tool(add)], model=model, max_steps=1, verbosity_level=0
    )
    agent.run("1 and 4")
    (step,) = [step for step in agent.memory.steps if isinstance(step, smolagents.ActionStep)][:1]
    assert step.error is None
    assert step.tool_calls[0].name in ("add", "final_answer")


def test_anthropics_client_calls_a_function_and_tells_its_result(served: Opened) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=served.address, api_key="x", max_retries=0)
    model, user = served.texts.client.model, {"role": "user", "content": "1 and 2"}
    tools = [{"name": "add", "input_schema": ADD["function"]["parameters"]}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    asked: dict[str, Any] = {"model": model, "tools": tools, "tool_choice": choice}
    asked["max_tokens"] = LIMITS["max_tokens"]
    first = client.messages.create(**asked, messages=[user])
    (use,) = first.content
    assert (first.stop_reason, use.type, use.name) == ("tool_use", "tool_use", "add")
    assert use.input["y"] in (1, 2)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "3"}
    messages = [
        user,
        {"role": "assistant", "content": [use.model_dump(exclude_none=True)]},
        {"role": "user", "content": [result]},
    ]
    with client.messages.stream(**asked, messages=messages) as stream:
        second = stream.get_final_message()
    assert second.content[0].name == "add"
    counted = client.messages.count_tokens(model=model, messages=messages, tools=tools)
    usage = second.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    thinking = {"type": "enabled", "budget_tokens": 1024}
    third = client.messages.create(**asked, messages=[user], thinking=thinking)
    assert third.content[-1].name == "add"  # the template has no variable for thinking
