"""Makes a program that fails smaller, and prints it."""

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


def script(program: Program, code: str, difference: str) -> str:
    """The files of a program, and what is done with it."""
    head = textwrap.fill(f"Seed {program.seed}: {difference}", 88)
    files = [f"# {name}\n{text}" for name, text in program.files().items()]
    events = [
        program.statement(event)
        if isinstance(event, Change)
        else f"step(x)  # {event.rows} rows, k={event.k}, {event.layout}"
        for event in program.history
    ]
    return "\n".join([f'"""{head}"""', *files, f"step = {code}", *events, ""])
