"""`outrider chat`: a chat in the terminal.

A line is a message, or a command that begins with /. The answer is written to stdout, and its
statistics to stderr, in one line. Ctrl-C stops the current answer, not the program.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from inference.command import printable, say
from inference.errors import InvalidRequest, OutriderError
from inference.files.writing import cache_directory
from inference.loop.draft_thread import take_short_turns
from outrider.client.client import Client, open_client
from outrider.options.roles import ChatRole
from outrider.terminal.live_text import LiveText, in_colour
from outrider.text.completion import Completion
from outrider.text.conversation import Conversation
from outrider.text.prompts import make_request, parameters_of
from outrider.text.runner import CompletionStream

HELP = """/stats          statistics of the texts so far
/cs POSITION    trade-off of cost and speed from now on: tps, balanced, cost or 0 to 100
/system TEXT    the system message; without TEXT it is removed
/save FILE      write the conversation
/load FILE      continue a saved conversation
/reset          start a new conversation; the system message stays
/exit           exit, as Ctrl-D does
Alt-Enter begins a new line within a message. Ctrl-C stops the current answer."""


def chat(options: ChatRole) -> int:
    """Role chat: answer messages from the terminal, or lines of standard input, until the end."""
    take_short_turns()
    with open_client(options) as client:
        client.wait()
        chatting = Chat(client, options)
        for line in _lines(f"{client.model}, draft: {client.draft or 'none'}"):
            if not chatting.take(line):
                break
    return 0


class Chat:
    """A chat with a client's target. `take` handles each line that the user types."""

    def __init__(self, client: Client, options: ChatRole) -> None:
        self.conversation, self._client, self._options = Conversation(), client, options
        self._texts, self._key = list[Completion](), uuid.uuid4().hex
        self._colour = in_colour()
        self._commands: Mapping[str, Callable[[str], None]] = {
            "help": lambda _: say(HELP),
            "stats": lambda _: say(self._statistics()),
            "cs": self._steer,
            "system": lambda text: self.conversation.say("system", text),
            "save": self._save,
            "load": self._load,
            "reset": lambda _: self.conversation.reset(),
        }

    def take(self, line: str) -> bool:
        """Handle an input line; report an error in one line. Returns False for /exit."""
        if line.strip() in ("/exit", "/quit"):
            return False
        try:
            if line.startswith("/"):
                self._command(line[1:])
            elif line.strip():
                self._answer(line)
        except OutriderError as error:
            say(f"error: {printable(str(error))}")
        return True

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name not in self._commands:
            commands = " ".join(f"/{command}" for command in (*self._commands, "exit"))
            raise InvalidRequest(f"unknown command /{name}: there are {commands}")
        self._commands[name](rest.strip())

    def _load(self, path: str) -> None:
        if not path:
            raise InvalidRequest("/load needs a file: /load FILE")
        self.conversation = Conversation.read(Path(path).expanduser())

    def _answer(self, message: str) -> None:
        """Answer a message. On an error, remove the message, so that the user can resend it."""
        conversation = self.conversation
        conversation.say("user", message)
        try:
            done = self._make()
        except OutriderError:
            conversation.take_back()
            raise
        conversation.say("assistant", done.text)
        self._texts.append(done)
        say(text_line(done))

    def _make(self) -> Completion:
        parameters = replace(parameters_of(self._options), prompt_cache_key=self._key)
        request = make_request(self._client.text_model, self.conversation.messages, parameters)
        with LiveText(self._colour) as show:
            stream = CompletionStream(partial(self._client.complete, request))
            while True:
                try:
                    for piece in stream:
                        show(piece)
                    break
                except KeyboardInterrupt:
                    stream.end()
        return stream.result

    def _steer(self, knob: str) -> None:
        self._client.steer(knob)
        say(f"--cs {knob} from now on")

    def _save(self, name: str) -> None:
        if not name:
            raise InvalidRequest("/save needs a file: /save FILE")
        self.conversation.write(Path(name).expanduser())
        say(f"saved in {name}")

    def _statistics(self) -> str:
        """Return the statistics of all answers: summed counts, and rates as ratios of sums."""
        if not self._texts:
            return "no text has been generated yet"
        return f"texts {len(self._texts)}, {figures(self._texts)}"


def text_line(done: Completion) -> str:
    """Format the line of statistics that is shown below an answer."""
    reason = {"length": "cut at the maximum length, ", "cancelled": "stopped, "}
    cost = "" if done.cost.value is None else f", ${done.cost.value:.6f}"
    return f"[{reason.get(done.finish_reason, '')}{figures([done])}{cost}]"


def figures(texts: Sequence[Completion]) -> str:
    """Format tokens, speed and tokens per forward pass of answers, finished or not."""
    tokens = sum(len(done.token_ids) for done in texts)
    forwards = sum(done.traffic.forwards for done in texts)
    seconds = sum(done.seconds for done in texts)
    speed = tokens / seconds if seconds else 0.0
    return f"{tokens} tokens, {speed:.1f} tokens/s, {tokens / max(forwards, 1):.2f} tokens a pass"


def _lines(who: str) -> Iterator[str]:
    """Yield messages and commands, typed on a terminal or read from standard input."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session = PromptSession[str](history=FileHistory(str(history_file())), key_bindings=keys)
    say(f"{who}; /help lists the commands, Ctrl-D exits")
    while True:
        try:
            yield session.prompt("> ")
        except KeyboardInterrupt:  # clears the typed line
            continue
        except EOFError:
            return


def history_file() -> Path:
    """Return the history file of chats, readable by this user only; create it if missing."""
    history = cache_directory("chat") / "history"
    history.parent.mkdir(parents=True, exist_ok=True)
    history.touch(mode=0o600)
    history.chmod(0o600)  # also if the file existed
    return history
