"""Output inside compiled code: print, logging, warnings and progress bars."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchproof.checking.static.flow import Flow
from torchproof.checking.static.patterns.pattern import Pattern, PatternMatch, splits
from torchproof.checking.static.source import walk

_WRITES = {
    "print",
    "pprint.pprint",
    "pprint.pp",
    "warnings.warn",
    "sys.stdout.write",
    "sys.stderr.write",
    "tqdm.write",
}
_LEVELS = {
    "debug",
    "info",
    "warning",
    "warn",
    "error",
    "critical",
    "exception",
    "log",
    "warning_once",
    "info_once",
    "fatal",
}
_LOGGER = re.compile(r"(?:self\.|cls\.|\w+\.)*_?log(?:ger|ging)?", re.IGNORECASE)
_BARS = ("tqdm.tqdm", "tqdm.trange", "tqdm.auto.tqdm", "tqdm.auto.trange")
_SWITCH = re.compile(r"debug|verbose", re.IGNORECASE)


class Output(Pattern):
    """print, logging, warnings and progress bars."""

    code = "GB104"
    kind = "graph_break"
    nodes = (ast.Call,)
    shown_by = ("GB104", "GB105", "GB117")

    def look(self, node: ast.AST, at: Flow) -> Iterator[PatternMatch]:
        assert isinstance(node, ast.Call)
        if not _is_output(node, at) or _is_switched(at):
            return
        yield splits(
            node,
            at,
            cause="{} writes output in the middle of the region",
            fix="remove it, move it after the compiled call, or guard it with `if not"
            " torch.compiler.is_compiling():`",
            # Under a condition, the program may never reach it.
            severity="low" if at.conditions else None,
        )


def _is_output(node: ast.Call, at: Flow) -> bool:
    dotted = at.dotted(node.func) or ""
    if dotted in _WRITES:
        return not any(k.arg == "file" for k in node.keywords)
    if dotted in _BARS:
        return True
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _LEVELS:
        return False
    return _LOGGER.fullmatch(dotted.rpartition(".")[0]) is not None


def _is_switched(at: Flow) -> bool:
    """Whether a debug or verbose switch guards this code."""
    for condition in at.conditions:
        for node in walk(condition):
            name = getattr(node, "attr", getattr(node, "id", ""))
            if isinstance(name, str) and _SWITCH.search(name):
                return True
    return False
