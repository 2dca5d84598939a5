"""`outrider chat`: a chat in the terminal.

A line is a message, or a command that begins with /. The text stands on stdout. What is said about
it stands in a status line below, and afterwards in one line on stderr. Ctrl-C ends the text that is
being made, and not the program.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event

from inference.command import glance, printable, say
from inference.draft_thread import take_short_turns
from inference.errors import InvalidRequest, OutriderError
from inference.files import cache_directory
from outrider.client.client import Client, open_client
from outrider.options.roles import ChatRole
from outrider.terminal.live_text import LiveText, in_colour
from outrider.text.completion import Completion, Show
from outrider.text.conversation import Conversation
from outrider.text.parameters import Parameters
from outrider.text.prompts import make_request
from outrider.text.runner import CompletionStream

HELP = """/stats          what the texts so far took
/cs POSITION    cost against speed from now on: tps, balanced, cost or 0 to 100
/system TEXT    the system message; without TEXT it is removed
/save FILE      write the conversation
/load FILE      continue a saved conversation
/reset          begin anew; the system message stays
/exit           end, as Ctrl-D does
Alt-Enter begins a new line within a message. Ctrl-C ends the text that is being made."""


def chat(options: ChatRole) -> int:
    """Role chat: read messages from the terminal, or lines from standard input, until their end."""
    conversation = Conversation()
    if options.system is not None:
        conversation.say("system", options.system)
    take_short_turns()
    with open_client(options) as client:
        client.wait()
        chatting = Chat(client, options, conversation)
        for line in _lines(f"{client.model}, drafted by {client.draft or 'nobody'}"):
            if not chatting.take(line):
                break
    return 0


class Chat:
    """A chat with a client's target. `take` hears what the user types."""

    def __init__(self, client: Client, options: ChatRole, conversation: Conversation) -> None:
        self.conversation, self._client, self._options = conversation, client, options
        self._texts, self._key = list[Completion](), uuid.uuid4().hex
        self._colour = in_colour()
        self._commands: Mapping[str, Callable[[str], None]] = {
            "help": lambda _: say(HELP),
            "stats": lambda _: say(self._all_told()),
            "cs": self._steer,
            "system": lambda text: self.conversation.say("system", text),
            "save": self._save,
            "load": self._load,
            "reset": lambda _: self.conversation.reset(),
        }

    def take(self, line: str) -> bool:
        """Do what a line says. Errors are said in one line. Returns False for /exit."""
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
            known = " ".join(f"/{command}" for command in (*self._commands, "exit"))
            raise InvalidRequest(f"/{name} is no command; there are {known}")
        self._commands[name](rest.strip())

    def _load(self, path: str) -> None:
        if not path:
            raise InvalidRequest("/load FILE: the name of a file is needed")
        self.conversation = Conversation.read(Path(path).expanduser())

    def _answer(self, message: str) -> None:
        """Answer a message. One that an error ended is taken back, so that it may be sent again."""
        conversation = self.conversation
        conversation.say("user", message)
        try:
            made = self._make()
        except OutriderError:
            conversation.take_back()
            raise
        conversation.say("assistant", made.text)
        self._texts.append(made)
        say(told(made))

    def _make(self) -> Completion:
        options = self._options.text
        given = Parameters(
            options.max_new_tokens,
            options.temperature,
            options.top_k,
            options.top_p,
            options.seed,
            prompt_cache_key=self._key,
        )
        request = make_request(self._client, self.conversation.messages, given)
        glancing = _glance if sys.stderr.isatty() else None
        with LiveText(self._colour) as show:

            def make(put: Show, end: Event) -> Completion:
                return self._client.complete(request, put, end, glancing)

            stream = CompletionStream(make)
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

    def _all_told(self) -> str:
        """The figures of all texts: counts add up, rates are ratios of sums."""
        if not self._texts:
            return "no text was made yet"
        return f"texts {len(self._texts)}, {figures(self._texts)}"


def told(made: Completion) -> str:
    """One line about a text, which stands below it."""
    reason = {"length": "cut at its length, ", "cancelled": "ended here, "}
    cost = "" if made.cost.value is None else f", ${made.cost.value:.6f}"
    return f"[{reason.get(made.finish_reason, '')}{figures([made])}{cost}]"


def figures(texts: Sequence[Completion]) -> str:
    """Tokens, speed and acceptance length of these texts, as far as they are made."""
    tokens = sum(len(done.token_ids) for done in texts)
    forwards = sum(done.traffic.forwards for done in texts)
    seconds = sum(done.seconds for done in texts)
    speed = tokens / seconds if seconds else 0.0
    return (
        f"{tokens} tokens, {speed:.1f} tokens/s, {tokens / max(forwards, 1):.2f} tokens a forward"
    )


def _glance(done: Completion) -> None:
    glance(figures([done]))


def _lines(who: str) -> Iterator[str]:
    """Messages and commands: typed, where standard input is a terminal, else its lines."""
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
    say(f"{who}; /help lists the commands, Ctrl-D ends")
    while True:
        try:
            yield session.prompt("> ")
        except KeyboardInterrupt:  # clears what was typed
            continue
        except EOFError:
            return


def history_file() -> Path:
    """The file of what was typed in chats, which only this user may read."""
    history = cache_directory("chat") / "history"
    history.parent.mkdir(parents=True, exist_ok=True)
    history.touch(mode=0o600)
    history.chmod(0o600)  # of a file from before, too
    return history
