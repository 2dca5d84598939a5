"""What the chat page and recordings show of a text while it is generated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import tokenizers
from tokenizers import decoders, models

from inference.loop.decode import TargetSession
from inference.order import Progress
from inference.proposer import NOBODY
from inference.text.stream import TokenBytes
from inference.text_log import Traffic
from outrider.client.client import Client
from outrider.client.watching import TextEvent, Watcher

WORDS = ["▁def", "▁f", "(", "</s>"]


def test_each_token_keeps_its_leading_space() -> None:
    rules = tokenizers.Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}))
    rules.decoder = decoders.Metaspace()
    rules.add_special_tokens(WORDS[3:])
    assert rules.decode([1]) == "f"
    committed = Progress(tokens=(0, 1, 2, 3), proposers=(NOBODY,) * 4)
    client: Any = SimpleNamespace(tokenizer=SimpleNamespace(token_bytes=TokenBytes(rules).of))
    session: Any = SimpleNamespace(traffic=Traffic(), receive=lambda _timeout: committed)
    events = list[TextEvent]()
    watcher = Watcher(cast(Client, client), events.append)
    watcher.watch(cast(TargetSession, session)).receive(0.0)
    ((_, data),) = events
    assert data["texts"] == [" def", " f", "(", "</s>"]
