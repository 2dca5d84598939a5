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
    """Find the best draft for this machine and a target: run each fitting draft, n-gram copying
    alone, and no draft, in turn. The last line is the command to use.
    """

    COMMON: ClassVar = (
        *("draft_model", "download", "seconds", "max_new_tokens", "json", "device", "threads"),
        *("target_host", "target", "tls_ca", "token_file", "usd_per_hour"),
    )
    RULES: ClassVar = RULES
    draft_model: ModelName | None = None
    """further directories and GGUF files to search for drafts: A,B"""
    download: bool = False
    """offer to download the two smallest published drafts that fit"""
    seconds: Seconds = 120.0
    """maximum time for loading and measuring"""
    max_new_tokens: Count = 128
    """maximum new tokens of a text"""
    as_json: File | None = Field(default=None, alias="json")
    """JSON file for all figures"""
    connection: ConnectionOptions = ConnectionOptions()
    device: DeviceOptions = DeviceOptions()
    prices: PriceOptions = PriceOptions()

    def of_run(self, **flags: Any) -> dict[str, Any]:
        """Flags of `outrider run`: those of a way of drafting, and those given here."""
        return {**self.connection.stated(), **self.device.stated(), **self.prices.stated(), **flags}
