"""OpenVINO GenAI in its own environment: plain generation, with a draft model, and prompt lookup.

    python -m benchmarks.rivals.openvino TARGET DRAFT DTYPE THREADS FOLDER ARM...

Checkpoints are exported to FOLDER once. Weights are float16 on file for bfloat16, as the exporter
has no bfloat16; arithmetic and keys are DTYPE.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.rivals.worker import Hear, Play, answer

PLAIN = "openvino"
ARMS = (PLAIN, f"{PLAIN} draft", f"{PLAIN} lookup")
NAMED, WORDS = 5, 3
"""Tokens that a round drafts, and the longest n-gram looked up: those of the library's samples."""

FORMATS = {"bfloat16": ("fp16", "bf16"), "float16": ("fp16", "f16"), "float32": ("fp32", "f32")}
"""Weights on file and arithmetic, by dtype."""


def exported(model: str, weights: str, folder: Path) -> Path:
    """The model's folder in OpenVINO's format."""
    made = folder / f"{Path(model).name}-{weights}"
    if not made.exists():
        part = made.with_name(f"{made.name}.part")
        task = ["--task", "text-generation-with-past", "--weight-format", weights]
        program = Path(sys.executable).with_name("optimum-cli")
        subprocess.run([program, "export", "openvino", "--model", model, *task, part], check=True)
        part.rename(made)
    return made


def load(arguments: list[str]) -> Mapping[str, Play]:
    """The arms, each with a pipeline of its own."""
    target, draft, dtype, threads, folder, *arms = arguments
    weights, arithmetic = FORMATS[dtype]
    models = [exported(model, weights, Path(folder)) for model in (target, draft)]
    openvino, genai = import_module("openvino"), import_module("openvino_genai")
    properties = {
        "INFERENCE_NUM_THREADS": int(threads),
        "INFERENCE_PRECISION_HINT": arithmetic,
        "KV_CACHE_PRECISION": arithmetic,
    }
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False

    def pipeline(arm: str) -> Any:
        helps: dict[str, Callable[[], dict[str, Any]]] = {
            ARMS[0]: dict,
            ARMS[1]: lambda: {"draft_model": genai.draft_model(models[1], "CPU", **properties)},
            ARMS[2]: lambda: {"prompt_lookup": True},
        }
        settings = {"scheduler_config": scheduler, **properties, **helps[arm]()}
        return genai.LLMPipeline(models[0], "CPU", **settings)

    def play(
        made_by: Any, arm: str, prompt: list[int], tokens: int, stop_ids: list[int], hear: Hear
    ) -> int:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.do_sample = tokens, False
        config.stop_token_ids = set(stop_ids)
        if arm != PLAIN:
            config.num_assistant_tokens = NAMED
        if arm == ARMS[2]:
            config.max_ngram_size = WORDS
        steps = 0

        def write(streamer: Any, ids: int | list[int]) -> Any:
            nonlocal steps
            steps += 1
            hear(ids if isinstance(ids, list) else [ids])
            return genai.StreamingStatus.RUNNING

        streamer = type("Streamer", (genai.StreamerBase,), {"write": write, "end": lambda _: None})
        made_by.generate(openvino.Tensor([prompt]), config, streamer())
        return steps

    return {arm: partial(play, pipeline(arm), arm) for arm in arms}


if __name__ == "__main__":
    answer(partial(load, sys.argv[1:]), ("openvino-genai", "openvino", "optimum-intel"))
