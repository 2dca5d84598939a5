"""Flags of `outrider recommend`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from inference.flags.command_line import CommandOptions
from inference.flags.values import Count, File, ModelName, Seconds
from outrider.options.groups import DeviceOptions, PriceOptions
from outrider.options.network import ConnectionOptions
from outrider.options.roles import RULES


class RecommendOptions(CommandOptions, title="drafting"):
    """Measure which draft suits this machine and a target: texts are made with each one that fits,
    with copies alone and without, in turn. The last line is the command to use.
    """

    COMMON: ClassVar = (
        *("draft_model", "download", "seconds", "max_new_tokens", "json", "device", "threads"),
        *("target_host", "target", "tls_ca", "token_file", "usd_per_hour"),
    )
    RULES: ClassVar = RULES
    draft_model: ModelName | None = None
    """also look for drafts below these directories, and at these GGUF files: A,B"""
    download: bool = False
    """ask whether to fetch the two smallest published drafts that fit and are not here"""
    seconds: Seconds = 120.0
    """time for loading and measuring"""
    max_new_tokens: Count = 128
    """tokens of a text; one that the time cuts is taken to go on as it did"""
    as_json: File | None = Field(default=None, alias="json")
    """write all figures to this file"""
    connection: ConnectionOptions = ConnectionOptions()
    device: DeviceOptions = DeviceOptions()
    prices: PriceOptions = PriceOptions()

    def of_run(self, **flags: Any) -> dict[str, Any]:
        """Flags of `outrider run`: those of a way of drafting, and those given here."""
        return {**self.connection.stated(), **self.device.stated(), **self.prices.stated(), **flags}
