"""The process in which `torchproof mcp` runs one verb.

It receives the words of a command line, sends `{"progress": text}` while the verb
works, and then `{"code", "text", "notes"}`: the exit code, what the verb printed, and
its lines on stderr. Ending this process ends everything that the verb started.
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
    answer = io.StringIO()
    # A file, since children of the verb may inherit stderr.
    with tempfile.TemporaryFile("w+", errors="backslashreplace") as notes:
        with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(notes):
            code = _code(words, _SentProgress(channel))
        notes.seek(0)
        lines = notes.read().splitlines()
    channel.send({"code": code, "text": answer.getvalue(), "notes": lines})
    leave(0)


def _code(words: list[str], display: _SentProgress) -> int:
    try:
        return verbs.main(words, display=display)
    except SystemExit as exit:  # of the parser, with a line on stderr
        return 2 if exit.code else 0


if __name__ == "__main__":
    main()
