"""Makes a program that fails smaller, and prints it as a script of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace

from state_programs import (
    NUMBER_USES,
    PLAIN_FORM,
    PLAIN_HOLDER,
    PLAIN_PLACEMENT,
    TENSOR_USES,
    Call,
    Change,
    Program,
)

MOST_TRIES = 80


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program found that still fails."""
    tries = 0
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(program):
            tries += 1
            if tries > MOST_TRIES:
                return program
            if fails(smaller):
                program, progress = smaller, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less, those with the most taken away first."""
    for reader in program.readers if len(program.readers) > 1 else ():
        yield replace(
            program,
            readers=tuple(each for each in program.readers if each is not reader),
            history=tuple(
                event
                for event in program.history
                if isinstance(event, Call) or event.reader != reader.number
            ),
        )
    events = program.history
    for number in range(len(events)):
        yield replace(program, history=events[:number] + events[number + 1 :])
    if program.form != PLAIN_FORM and not any(r.kind.is_root for r in program.readers):
        yield replace(program, form=PLAIN_FORM)
    for number, reader in enumerate(program.readers):
        use = (NUMBER_USES if reader.kind.read else TENSOR_USES)[1]
        plainer = {"holder": PLAIN_HOLDER, "placement": PLAIN_PLACEMENT, "use": use}
        for name, value in plainer.items():
            if getattr(reader, name) != value:
                changed = replace(reader, **{name: value})
                before, after = program.readers[:number], program.readers[number + 1 :]
                yield replace(program, readers=(*before, changed, *after))
    for number, event in enumerate(events):
        if isinstance(event, Call) and event != Call():
            plain = (*events[:number], Call(), *events[number + 1 :])
            yield replace(program, history=plain)


_DRIVER = """
import contextlib, importlib, pathlib, random, sys, tempfile
import numpy, torch, torchproof

try:
    import strip  # tests/cudagraph: recordings on the CPU
except ImportError:
    installed = contextlib.nullcontext
else:
    installed = strip.installed


def run(name, wrap):
    for file, text in FILES.items():
        path = pathlib.Path(folder, name, file)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    torch.manual_seed(SEED)
    program = importlib.import_module(name)
    step = wrap(program.subject)
    for number, event in enumerate(HISTORY):
        for module in (torch, random, numpy.random):
            (module.manual_seed if module is torch else module.seed)(number)
        try:
            if isinstance(event, str):
                exec(event, vars(program))
            else:
                rows, keywords = event
                x = torch.arange(-4.0, 4.0 * rows - 4.0).view(-1, 4)
                print(name, number, step(x, **keywords).flatten()[:4].tolist())
        except Exception as error:
            print(name, number, type(error).__name__, error)
    return step


with installed(), tempfile.TemporaryDirectory() as folder:
    sys.path.insert(0, folder)
    run("eager", lambda step: step)
    run("given", lambda step: CODE)
"""


def script(program: Program, code: str, difference: str) -> str:
    """A program that prints what eager gives and what is given instead."""
    files = "".join(
        f"    {name!r}: '''\\\n{text}''',\n" for name, text in program.files().items()
    )
    events = "".join(
        f"    {program.statement(event)!r},\n"
        if isinstance(event, Change)
        else f"    ({event.rows}, {_keywords(event)}),\n"
        for event in program.history
    )
    head = textwrap.fill(f"Seed {program.seed}: {difference}", 88)
    driver = _DRIVER.replace("CODE", code)
    return (
        f'"""{head}"""\n\nSEED = {program.seed}\nFILES = {{\n{files}}}\n'
        f"HISTORY = [\n{events}]\n{driver}"
    )


def _keywords(call: Call) -> str:
    return "{}" if call.k is None else f"{{'k': {call.k}}}"
