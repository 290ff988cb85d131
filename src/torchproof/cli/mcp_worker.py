"""The process in which `torchproof mcp` runs one verb.

It receives the words of a command line, sends `{"progress": text}` while the verb
works, and then `{"code", "text", "run", "error"}`: the exit code, what the verb
printed, the run that it showed, and why it failed. Ending this process ends everything
that the verb started.
"""

from __future__ import annotations

import contextlib
import io
import tempfile

from torchproof.cli import verbs
from torchproof.process import Channel, hold, leave
from torchproof.records import PartState, SearchState


class _SentProgress:
    """In the place of the progress line: each text becomes a message."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.run: str | None = None  # which the verb shows
        self.error = ""

    def __call__(self, text: str) -> None:
        self._channel.send({"progress": text})

    def enter(self, part: PartState) -> None:
        self(f"part {part.number} of {part.count}, {part.name}")

    def show(self, state: SearchState) -> None:
        """The trials of a search, which no tool starts."""

    def opened(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def main() -> None:
    hold(descendants=True)
    channel = Channel.to_parent()
    words = channel.receive()["words"]
    text, display = io.StringIO(), _SentProgress(channel)
    # A file, since children of the verb may inherit stderr.
    with (
        tempfile.TemporaryFile("w+", errors="backslashreplace") as notes,
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(notes),
    ):
        code = verbs.main(words, display=display)
    answer = {"code": code, "text": text.getvalue()}
    channel.send({**answer, "run": display.run, "error": display.error})
    leave(0)


if __name__ == "__main__":
    main()
