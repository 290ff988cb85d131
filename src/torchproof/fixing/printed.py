"""Collects what a program prints, logs and warns about; needs no torch."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator

from torchproof.records import whose


def _forget_logged() -> None:
    """Lets methods of loggers that log a text once, `warning_once`, log it again."""
    for method in list(vars(logging.Logger).values()):
        if hasattr(method, "cache_clear"):
            method.cache_clear()


class _Printed(io.TextIOWrapper):
    """Open as long as the program keeps it, and then closed without a warning."""

    def __del__(self) -> None:
        self.close()


@contextlib.contextmanager
def collected_text() -> Iterator[list[str]]:
    """Collects what the program prints, logs and warns about, but not torch's own."""
    lines: list[str] = []
    # Programs also write bytes, give the descriptor to processes, and write later.
    written = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    printed = _Printed(written, "utf-8", write_through=True)
    _forget_logged()
    handle = logging.Logger.callHandlers

    def record(logger: logging.Logger, entry: logging.LogRecord) -> None:
        if entry.name.startswith("torch."):  # as its trace, which is observed
            handle(logger, entry)
        else:
            lines.append(f"{entry.name} {entry.levelname}: {entry.getMessage()}")

    logging.Logger.callHandlers = record  # type: ignore[method-assign, assignment]
    try:
        with (
            contextlib.redirect_stdout(printed),
            warnings.catch_warnings(record=True) as warned,
        ):
            yield lines
    finally:
        logging.Logger.callHandlers = handle  # type: ignore[method-assign]
    printed.flush()
    written.seek(0)
    lines += written.read().decode(errors="replace").splitlines()
    lines += [
        f"{each.category.__name__}: {each.message}"
        for each in warned
        if whose(each.filename) in {"user", "library"}
    ]
