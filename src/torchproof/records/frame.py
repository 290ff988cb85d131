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

# Statements whose commas and colons separate no expressions.
_STATEMENT = re.compile(
    r"(?:async|for|with|import|from|class|def|except|del|global|return|@)\b"
    r"|[\w.,\[\]: ]+ = "
)
_SEPARATORS = re.compile(r""""[^"]*"|'[^']*'|:=|[][(){},;:]|\blambda\b""")
# What a compound statement evaluates in its own line.
_HEAD = re.compile(r"(?:if|elif|while) (.+)$|for .+? in (.+\))$")


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
            code = first_expression(without_comment(self.code))
            code = re.sub(r"^(return |[\w.,\[\] ]+ = )(?=\S)", "", code)
            head = _HEAD.match(code)
            return (head[1] or head[2]) if head else code
        return self.code[slice(*self.columns)].strip() or self.code


def first_expression(code: str) -> str:
    """The code before what separates it from the next argument, statement or block.

    Dynamo marks a line to its end, wherever the expression ends. A name alone never
    breaks: it is the first of several targets.
    """
    depth, is_simple = 0, not _STATEMENT.match(code)
    for found in _SEPARATORS.finditer(code):
        text, before = found[0], code[: found.start()].rstrip()
        depth += (text in "([{") - (text in ")]}")
        ends = text == ";" or (text in ",:" and is_simple)
        if depth < 0 or (depth == 0 and ends and not before.isidentifier()):
            return before
        is_simple = is_simple and text != "lambda"
    return code if depth else re.sub(r"[:,=]$", "", code).rstrip()


def without_comment(code: str) -> str:
    """A line of code, which may be part of a statement, without its comment."""
    with contextlib.suppress(tokenize.TokenError, SyntaxError):  # the rest is elsewhere
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                return code[: token.start[1]].rstrip() or code
    return code
