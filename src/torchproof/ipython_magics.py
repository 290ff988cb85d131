"""`%load_ext torchproof`: the magics `%torchproof` and `%%torchproof` of IPython.

A line names a verb, an expression for the model and its calls, and flags. A cell is
run, and then its model is checked. Both return the run, which IPython shows.
"""

from __future__ import annotations

import ast
import contextlib
import html
import importlib
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torchproof import api
from torchproof.records import Run, UserError
from torchproof.records.option import OptionField, options_of

VERBS: dict[str, Callable[..., Run]] = {
    "check": api.check,
    "bench": api.bench,
    "fix": api.fix,
    "tune": api.tune,
}
_USAGE = "%torchproof check|bench|fix|tune MODEL, CALLS [--FLAG VALUE]..."


def load_ipython_extension(shell: Any) -> None:
    """Registers the magics; `%load_ext torchproof` calls this."""

    def torchproof(line: str, cell: str | None = None) -> Run | None:
        """Checks a model of the session, measures it, fixes or tunes it.

        %torchproof check|bench|fix|tune MODEL, CALLS [--FLAG VALUE]...

        As a cell magic, %%torchproof runs the cell first. Its last expression is the
        model with its calls; without one, the names model and calls are taken. Flags
        are the keyword arguments of torchproof.check and so on: --effort quick.
        """
        try:
            return (
                _in_line(shell, line) if cell is None else _in_cell(shell, line, cell)
            )
        except UserError as error:
            print(f"torchproof: {error}", file=sys.stderr)
            return None

    shell.register_magic_function(torchproof, "line_cell", "torchproof")


def _in_line(shell: Any, line: str) -> Run:
    verb, _, rest = line.strip().partition(" ")
    expression, dashes, words = rest.partition(" --")
    flags = _flags(verb, dashes + words)
    if not expression.strip() or expression.startswith("--"):
        raise UserError(f"no model and calls: {_USAGE}")
    try:
        value = eval(expression.strip(), shell.user_ns)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"cannot evaluate {expression.strip()!r}: {reason}") from None
    return _run(shell, verb, value, flags)


def _in_cell(shell: Any, line: str, cell: str) -> Run:
    """Runs a cell, then the verb on the model and calls that it defines."""
    verb, _, words = line.strip().partition(" ")
    flags = _flags(verb, words)
    namespace = shell.user_ns
    # An empty line stands for that of the magic, so that lines have their numbers.
    text = "\n" + shell.transform_cell(cell)
    number = len(shell.history_manager.input_hist_raw) - 1  # of the cell that runs
    file = shell.compile.cache(text, number, raw_code="\n" + cell)
    value = None
    try:
        tree = ast.parse(text, file)
        ends = bool(tree.body) and isinstance(tree.body[-1], ast.Expr)
        last = tree.body.pop() if ends else None
        exec(compile(tree, file, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), namespace)
    except SyntaxError as error:
        invalid = _InvalidCell(str(error))
        table = shell.SyntaxTB
        _show(invalid, table.structured_traceback(type(error), error, []))
        raise invalid from None
    except BaseException as error:
        _show_from_the_cell(shell, error)
        raise
    if not (isinstance(value, tuple) and len(value) == 2):
        lacks = [name for name in ("model", "calls") if name not in namespace]
        if lacks:
            raise UserError(
                f"the cell defines no {lacks[0]}: define model and calls, or end it"
                " with the line: model, calls"
            )
        value = namespace["model"], namespace["calls"]
    return _run(shell, verb, value, flags)


class _InvalidCell(Exception):
    """A cell with a syntax error, which IPython would show with frames of the magic."""


def _show(error: BaseException, lines: list[str]) -> None:
    """Lets IPython show these lines for the error: it asks an error for its own."""
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]


def _show_from_the_cell(shell: Any, error: BaseException) -> None:
    """Shows an error of the cell as IPython does, without the frame of the magic."""
    frames = error.__traceback__ and error.__traceback__.tb_next
    table = shell.InteractiveTB
    _show(error, table.structured_traceback(type(error), error, frames, tb_offset=0))


def _run(shell: Any, verb: str, value: Any, flags: dict[str, Any]) -> Run:
    target, calls = (value, None) if isinstance(value, str) else _pair(value)
    try:
        with _progress(shell) as show:
            reporting: dict[str, Any] = {} if verb == "tune" else {"progress": show}
            # What the compiler logs would hide the report.
            flags.setdefault("quiet", True)
            return VERBS[verb](target, calls, **reporting, **flags)
    except KeyboardInterrupt as stopped:
        if saved := api.interrupted_run(stopped):
            importlib.import_module("IPython.display").display(saved)
            _show(stopped, [f"KeyboardInterrupt: saved as run {saved.id}"])
        raise


def _pair(value: Any) -> tuple[Any, Any]:
    if isinstance(value, tuple) and len(value) == 2:
        return value[0], value[1]
    raise UserError(f"a {type(value).__name__} is no model with calls: {_USAGE}")


def _flags(verb: str, text: str) -> dict[str, Any]:
    """`--effort quick --train` as keyword arguments.

    A flag has its name on the command line, or that of the keyword.
    """
    if verb not in VERBS:
        raise UserError(f"no verb {verb!r}: {_USAGE}")
    try:
        left = shlex.split(text)
    except ValueError as error:
        raise UserError(f"cannot read the flags {text!r}: {error}") from None
    options: dict[str, OptionField] = {}
    for each in options_of(api.KEYWORDS[verb]):
        options |= {each.word: each, each.key: each}
    flags: dict[str, Any] = {}
    while left:
        flag, equals, value = left.pop(0).partition("=")
        if not flag.startswith("--"):
            raise UserError(f"{flag!r} is no flag: {_USAGE}")
        option = options.get(flag[2:].replace("-", "_"))
        if option is None:
            raise UserError(f"{verb} has no flag {flag}")
        if not equals and left and not left[0].startswith("--"):
            equals, value = "=", left.pop(0)
        if not equals and not option.is_switch:
            raise UserError(f"{flag} needs a value")
        flags[option.key] = option.read(value) if equals else not option.default
    return flags


@contextlib.contextmanager
def _progress(shell: Any) -> Iterator[Callable[[str], None]]:
    """Shows one line of progress in place, and removes it at the end."""
    if not hasattr(shell, "kernel"):  # in a terminal
        yield lambda text: print(f"torchproof: {text}", file=sys.stderr)
        return
    # It may have no types, or not be installed, where torchproof itself is checked.
    ipython: Any = importlib.import_module("IPython.display")
    lines: list[Any] = []

    def show(text: str) -> None:
        line = f'<div style="opacity:.7">torchproof: {html.escape(text)}</div>'
        if lines:
            lines[0].update(ipython.HTML(line))
        else:
            lines.append(ipython.display(ipython.HTML(line), display_id=True))

    try:
        yield show
    finally:
        for line in lines:
            line.update(ipython.HTML(""))
