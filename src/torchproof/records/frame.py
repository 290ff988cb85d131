"""One line of a Python stack, and whose code it is.

A module of its own, because production code needs no other record of a run.
"""

from __future__ import annotations

import contextlib
import io
import re
import tokenize
from dataclasses import dataclass
from typing import Annotated, Literal

from torchproof.records.schema import Integer, Record

Owner = Literal["user", "library"]


@dataclass(frozen=True)
class Frame(Record):
    """One line of a Python stack; `columns` is the part the traceback underlines."""

    file: str
    line: Annotated[int, Integer]  # torch writes -1 for an unknown line
    function: str
    code: str = ""
    columns: tuple[int, int] | None = None

    @property
    def expression(self) -> str:
        """The underlined part of the line, or all of it."""
        if self.columns is None:  # a whole statement: the expression it computes
            code = without_comment(self.code)
            return re.sub(r"^(return |[\w.,\[\] ]+ = )(?=\S)", "", code)
        return self.code[slice(*self.columns)].strip() or self.code


def without_comment(code: str) -> str:
    """A line of code, which may be part of a statement, without its comment."""
    with contextlib.suppress(tokenize.TokenError, SyntaxError):  # the rest is elsewhere
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                return code[: token.start[1]].rstrip() or code
    return code
