"""What a text is asked for with, and what comes back: for the Python interface and the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Event, Thread
from typing import TypeAlias

from inference.cost.quantity import Figure, Quality
from inference.errors import InvalidRequest, LimitExceeded, OutriderError
from inference.sampling import SEED_BITS, SamplingParams, random_seed
from outrider.client.client import Client, Watch
from outrider.text.completion import Broken, Completion, Piece, Request, Show, Tell
from outrider.text.stop_strings import StopStrings

Message: TypeAlias = Mapping[str, str]
"""A message of a chat: its `role` (system, user or assistant) and its `content`."""

Prompt: TypeAlias = "str | Sequence[Message] | Sequence[int]"
"""Text to go on with, the messages of a chat, or token ids."""


SLICE = 2**16
"""Characters of a long prompt that are counted at a time."""


class PromptTooLong(LimitExceeded):
    """A prompt leaves no room for a text. `param` is the field of a request that holds it."""

    def __init__(self, prompt: Prompt, tokens: str, length: int) -> None:
        super().__init__(
            f"the prompt has {tokens} tokens: the sequence length is {length}, prompt and output "
            "together"
        )
        chat = not isinstance(prompt, str) and isinstance(prompt[0], Mapping)
        self.param = "messages" if chat else "prompt"


@dataclass(frozen=True)
class Parameters:
    """How a text is made. Raises InvalidRequest for values out of bounds.

    max_tokens: tokens at most; None for as many as fit
    temperature: 0 is greedy
    top_k: 0 is off
    top_p: 1 is off
    seed: of the noise; None takes a random one
    stop: strings that end the text and are left out of it
    prompt_cache_key: texts of one key go to one replica, which may have their beginning computed
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: Sequence[str] = ()
    prompt_cache_key: str = ""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is 1 or more: got {self.max_tokens}")
        StopStrings(self.stop)
        self.sampling(0)

    def sampling(self, seed: int) -> SamplingParams:
        """The sampling parameters with this seed."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, seed).on_the_wire()


@dataclass(frozen=True)
class Generation:
    """A finished text.

    finish_reason: stop (a stop id or string), length, cancelled, or spent (the purse is empty)
    cost: US dollars of the text; unavailable where a price is not known
    energy: joules of this machine while it drafted; unavailable where nobody stated its watts
    statistics: everything that was counted
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    seed: int
    prompt_tokens: int
    cost: Figure
    energy: Figure
    statistics: Completion


def make_request(client: Client, prompt: Prompt, parameters: Parameters, index: int = 0) -> Request:
    """The request for a text. Raises PromptTooLong for a prompt that does not fit.

    The work on any prompt is bounded by the sequence length. Raises InvalidRequest for a prompt
    that is empty or out of range.
    """
    _check_size(client, prompt)
    ids = read_prompt(client, prompt)
    if len(ids) >= client.length:
        raise PromptTooLong(prompt, str(len(ids)), client.length)
    room = client.length - len(ids)
    seed = random_seed() if parameters.seed is None else parameters.seed
    return Request(
        index,
        prompt if isinstance(prompt, str) else "",
        ids,
        parameters.sampling(min(seed, 2**SEED_BITS - 1)),
        min(parameters.max_tokens or room, room),
        client.target.description.stop_ids,
        cache_key=parameters.prompt_cache_key,
    )


def going_on(client: Client, request: Request, made: Sequence[int]) -> tuple[Request, str, int]:
    """The rest of a text that broke off: its request, the text so far, and the tokens of that.

    With the same seed the rest is what it would have been. Tokens at the end that are no whole
    character are made again. Raises InvalidRequest for ids out of range, and for a whole text.

    made: tokens that came
    """
    stream, text, kept = client.tokenizer.stream(request.ids), "", 0
    for count, token in enumerate(read_prompt(client, made), start=1):
        piece = stream.push(token)
        if piece:
            text, kept = text + piece, count
    if kept >= request.max_new_tokens:
        raise InvalidRequest(f"the text is whole: it has its {request.max_new_tokens} tokens")
    ids, left = [*request.ids, *made[:kept]], request.max_new_tokens - kept
    return replace(request, ids=ids, max_new_tokens=left), text, kept


def _check_size(client: Client, prompt: Prompt) -> None:
    """Raise PromptTooLong where a prompt far beyond the sequence length shows this.

    Long text is counted slice by slice, up to a quarter more tokens than fit: a cut makes a few
    more tokens than the whole has.
    """
    tokens, most = 0, client.length * 5 // 4
    if isinstance(prompt, str):
        texts = [prompt]
    else:
        texts = [one.get("content", "") for one in prompt if isinstance(one, Mapping)]
        tokens = len(prompt)  # each id, or message, is one at least
    if sum(map(len, texts)) > 8 * client.length:
        for part in (text[at : at + SLICE] for text in texts for at in range(0, len(text), SLICE)):
            if tokens > most:
                break
            tokens += len(client.tokenizer.encode(part))
    if tokens > most:
        raise PromptTooLong(prompt, f"more than {client.length}", client.length)


def read_prompt(client: Client, prompt: Prompt) -> Sequence[int]:
    """The token ids of a prompt. Raises InvalidRequest for one that is empty or out of range."""
    if isinstance(prompt, str):
        return client.tokenizer.encode(prompt)
    if not prompt:
        raise InvalidRequest("the prompt is empty")
    messages = [part for part in prompt if isinstance(part, Mapping)]
    if messages:
        return client.tokenizer.encode_chat(messages)
    ids = [part for part in prompt if isinstance(part, int)]
    wrong = [token for token in ids if not 0 <= token < client.tokenizer.vocabulary]
    if wrong:
        raise InvalidRequest(
            f"token ids are 0 to {client.tokenizer.vocabulary - 1}: got {wrong[0]}"
        )
    return ids


def generate(
    client: Client,
    request: Request,
    stop: Sequence[str],
    show: Show,
    cancelled: Event,
    tell: Tell | None = None,
    watch: Watch | None = None,
    *,
    alone: bool = False,
) -> Generation:
    """Make the text of a request, up to a stop string. Raises the error that ended it.

    show: receives the pieces
    cancelled: ends the text when it is set; a stop string sets it, too
    tell, watch, alone: as of Client.complete()
    """
    strings, parts = StopStrings(stop), list[str]()

    def take(piece: Piece) -> None:
        text = strings.push(piece.text)
        if strings.found:
            cancelled.set()
        if text:
            parts.append(text)
            show(piece._replace(text=text))

    try:
        done = client.complete(request, take, cancelled, tell, watch, alone=alone)
    except Broken as error:
        raise error.reason from None
    rest = strings.finish()
    if rest:
        parts.append(rest)
        show(Piece(rest))
    return Generation(
        text="".join(parts),
        token_ids=tuple(done.token_ids),
        finish_reason="stop" if strings.found else done.finish_reason,
        seed=done.seed,
        prompt_tokens=done.prompt_tokens,
        cost=cost_of(client, done),
        energy=energy_of(client, done),
        statistics=done,
    )


def cost_of(client: Client, done: Completion) -> Figure:
    """US dollars of a text. It is a lower bound where only some prices are known."""
    if done.usd is None:
        return Figure.unavailable("nobody has stated a price of the target")
    if not done.token_ids:
        return Figure.measured(done.usd, client.purse.source or "")
    whole = client.purse.terms.price("total_cost", len(done.token_ids), done.effort)
    if whole.value is None:
        source = f"at least, by {client.purse.source}; not counted: {whole.source}"
        return Figure(done.usd, Quality.ESTIMATED, source, lower_bound=True)
    return Figure(done.usd, whole.quality, client.purse.source or whole.source)


def energy_of(client: Client, done: Completion) -> Figure:
    """Joules of this machine while it drafted for a text, by the watts that the user states."""
    if not done.token_ids:
        return Figure.measured(0.0, "no tokens were made")
    tokens = len(done.token_ids)
    return client.purse.terms.price("draft_energy", tokens, done.effort).times(tokens)


class GenerationStream(Iterator[Piece]):
    """The pieces of a text while it is made, by a thread of its own.

    Iterate to the end, or leave the context: that ends the text at once. `result` has the whole
    text afterwards. An error that ends the text is raised by the iteration.
    """

    def __init__(self, make: Callable[[Callable[[Piece], None], Event], Generation]) -> None:
        self._make, self._cancelled = make, Event()
        self._queue: SimpleQueue[Piece | OutriderError | Generation] = SimpleQueue()
        self._result: Generation | None = None
        self._thread = Thread(target=self._run, name="generation", daemon=True)
        self._thread.start()

    @property
    def result(self) -> Generation:
        """The finished text. Raises InvalidRequest before the iteration has ended."""
        if self._result is None:
            raise InvalidRequest("the text is not finished: iterate over the stream to its end")
        return self._result

    def end(self) -> None:
        """End the text where it is. The iteration goes on to what was made until then."""
        self._cancelled.set()

    def close(self) -> None:
        """End the text, and wait for its thread. Idempotent."""
        self.end()
        self._thread.join()

    def __next__(self) -> Piece:
        item = self._queue.get() if self._result is None else self._result
        if isinstance(item, Piece):
            return item
        if isinstance(item, OutriderError):
            self._queue.put(item)  # a further call raises it again
            raise item
        self._result = item
        raise StopIteration

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run(self) -> None:
        ended: Generation | OutriderError = OutriderError(
            "the text was ended by an error of this program, which stands on stderr"
        )
        try:
            ended = self._make(self._queue.put, self._cancelled)
        except OutriderError as error:
            ended = error
        finally:
            self._queue.put(ended)
