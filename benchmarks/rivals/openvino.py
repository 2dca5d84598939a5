"""Arms of OpenVINO GenAI: plain generation, with a draft model, and prompt lookup.

They need the package openvino-genai, and models that `optimum-cli export openvino --task
text-generation-with-past --weight-format fp16` has exported. Not yet run in this form.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.rivals.arm import Hear, Plays
from outrider.text.completion import Request

PLAIN = "openvino"
ARMS = (PLAIN, f"{PLAIN} draft", f"{PLAIN} lookup")
CHAIN, WORDS = 5, 3
"""Tokens that a round drafts, and the longest n-gram looked up: those of the library's samples."""

ARITHMETIC = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def pipelines(target: str, draft: str, dtype: str, threads: int) -> Plays:
    """Return the arms, each with a pipeline of its own."""
    openvino, genai = import_module("openvino"), import_module("openvino_genai")
    properties = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": ARITHMETIC[dtype],
        "KV_CACHE_PRECISION": ARITHMETIC[dtype],
    }
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    helps: dict[str, Callable[[], dict[str, Any]]] = {
        ARMS[0]: dict,
        ARMS[1]: lambda: {"draft_model": genai.draft_model(draft, "CPU", **properties)},
        ARMS[2]: lambda: {"prompt_lookup": True},
    }

    def play(pipeline: Any, name: str, request: Request, hear: Hear) -> int:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.do_sample = request.max_new_tokens, False
        config.stop_token_ids = set(request.stop_ids)
        if name != PLAIN:
            config.num_assistant_tokens = CHAIN
        if name == ARMS[2]:
            config.max_ngram_size = WORDS
        steps = 0

        def write(streamer: Any, ids: int | list[int]) -> Any:
            nonlocal steps
            steps += 1
            hear(ids if isinstance(ids, list) else [ids])
            return genai.StreamingStatus.RUNNING

        streamer = type("Streamer", (genai.StreamerBase,), {"write": write, "end": lambda _: None})
        pipeline.generate(openvino.Tensor([list(request.ids)]), config, streamer())
        return steps

    def load(name: str) -> Any:
        settings = {"scheduler_config": scheduler, **properties, **helps[name]()}
        return genai.LLMPipeline(target, "CPU", **settings)

    return {name: partial(play, load(name), name) for name in ARMS}
