"""Fields of requests that are not served, and the reason to refuse each."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

_CHOICE = "is not served: it would change the target's own choice"
_TEMPLATE = "is not served: the model's own template makes the prompt"
_LOGPROBS = "is not served here: logprobs of /v1/completions, with echo for a prompt's, are"
_FORM = "is not served: response_format and structured_outputs say which form a text has"
_TOOLS = "is not served here: tools of /v1/chat/completions are"
_KEPT = "is not served: no answer is kept, so send the whole conversation"

REASONS = {
    _CHOICE: "length_penalty no_repeat_ngram_size bad_words allowed_token_ids logits_processors "
    "typical_p top_a tfs_z top_n_sigma mirostat dynatemp_range xtc_probability dry_multiplier "
    "samplers use_beam_search num_beams do_sample",
    "is not served: repetition_penalty acts on prompt and text": "repeat_penalty",
    _FORM: "grammar json_schema regex ebnf guided_json guided_regex guided_choice guided_grammar "
    "format verbosity modalities audio",
    _LOGPROBS: "top_logprobs prompt_logprobs n_probs",
    _TOOLS: "tools functions tool_calls function_call web_search_options mcp_servers",
    _KEPT: "previous_response_id conversation background container",
    _TEMPLATE: "chat_template chat_template_kwargs add_generation_prompt continue_final_message "
    "add_special_tokens documents reasoning reasoning_effort thinking thinking_token_budget",
    "is not served: max_tokens bounds a text": "n_predict max_new_tokens num_predict",
    "is not served: a text ends at the model's stop ids, max_tokens or stop": "min_tokens "
    "min_new_tokens ignore_eos stop_token_ids include_stop_str_in_output t_max_predict_ms",
    "is not served: texts come without special tokens": "skip_special_tokens "
    "spaces_between_special_tokens",
    "is not served: send the prompt that is wanted": "echo suffix truncate_prompt_tokens "
    "prompt_embeds input_prefix input_suffix options",
    "is not served: ask for n texts and choose yourself": "best_of",
}
"""Reasons to refuse fields that would change the text, and the fields."""

UNSERVED = {name: reason for reason, names in REASONS.items() for name in names.split()}

NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("repeat_penalty", "length_penalty"), (1,)),
    **dict.fromkeys(("typical_p", "tfs_z", "best_of", "num_beams"), (1,)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "do_sample": (True,),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "reasoning_effort": ("none",),
    "reasoning": ({"effort": None}, {"effort": "none"}),
    "thinking": ({"type": "disabled"},),
    "function_call": ("none", "auto"),
    "top_n_sigma": (-1, 0),
}
"""Values that ask for nothing. Of other fields these are null, false, zero and what is empty."""


class UnservedField(ValueError):
    """A request has a field that is not served. `param` is its name."""

    def __init__(self, param: str) -> None:
        super().__init__(f"{param} {UNSERVED[param]}")
        self.param = param


class ServedFields(BaseModel):
    """A part of a request. A field that would change the text and is not served is refused.

    Other unknown fields are ignored, since every client sends some.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_served(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            asks = value is not None and name in UNSERVED
            if asks and (value not in NEUTRAL[name] if name in NEUTRAL else value):
                raise UnservedField(name)
        return self
