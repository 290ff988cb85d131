"""Random programs that read state, as source files, with calls and changes."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace

from state_catalogue import (
    FORMS,
    Holder,
    Mechanism,
    Placement,
    holders,
    mechanisms,
    placements,
)

IMPORTS = (
    *("abc", "collections", "contextlib", "contextvars", "copy", "dataclasses", "enum"),
    *("functools", "importlib", "inspect", "itertools", "operator", "os", "random"),
    *("sys", "types", "typing", "weakref", "numpy", "torch"),
)
NUMBER_USES = (
    "x * READ",
    "x + READ",
    "(x * 2 if READ > 2.5 else x - 1)",
    "torch.full_like(x, READ) + x",
    "x.roll(int(READ), 1)",
    "sum([x] * int(READ), x)",
    "x * float(str(READ))",
    "x.mul(READ).sub(1)",
)
TENSOR_USES = ("x * READ", "x + READ", "torch.where(x > 0, x, READ)")
LAYOUTS = ("contiguous", "transposed", "columns", "later rows")
PLAIN_HOLDER, PLAIN_PLACEMENT, PLAIN_FORM = "a global", "in the step", "function"


@dataclass(frozen=True)
class Reader:
    """One mechanism in a program: how it is held, where and for what it is read."""

    number: int
    mechanism: str
    holder: str = PLAIN_HOLDER
    placement: str = PLAIN_PLACEMENT
    use: str = NUMBER_USES[0]

    @property
    def kind(self) -> Mechanism:
        return mechanisms()[self.mechanism]


@dataclass(frozen=True)
class Call:
    """A call; the values of its tensor do not depend on how it lies in memory."""

    rows: int = 2
    k: float | None = None
    layout: str = LAYOUTS[0]


@dataclass(frozen=True)
class Change:
    """One of the statements that change what a reader reads, or what nobody reads."""

    reader: int | None
    choice: int


@dataclass(frozen=True)
class Program:
    seed: int
    form: str
    readers: tuple[Reader, ...]
    history: tuple[Call | Change, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reader.mechanism for reader in self.readers)

    @property
    def writes(self) -> bool:
        return any(reader.kind.writes for reader in self.readers)

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(
            _outside(reader, reader.kind.state)
            for reader in self.readers
            if reader.kind.state
        )

    @property
    def cleanups(self) -> tuple[str, ...]:
        return tuple(
            _outside(reader, reader.kind.cleanup)
            for reader in self.readers
            if reader.kind.cleanup
        )

    def statement(self, change: Change) -> str:
        if change.reader is None:
            return f"nobody_reads_this = {change.choice}"
        (reader,) = (each for each in self.readers if each.number == change.reader)
        return statements(reader)[change.choice]

    def files(self) -> dict[str, str]:
        """What is written into the folder of the program."""
        found = {"__init__.py": source(self)}
        for reader in self.readers:
            for name, text in reader.kind.files.items():
                found[_numbered(name, reader)] = _numbered(text, reader)
        return found


# -- generation ------------------------------------------------------------------------


def generate(
    seed: int,
    excluded: frozenset[str] = frozenset(),
    forms: tuple[str, ...] = FORMS,
) -> Program:
    """A program of 1 to 6 readers; none of the mechanisms that are `excluded`."""
    chance = random.Random(seed)
    form = chance.choice(forms)
    possible = [
        each
        for each in mechanisms().values()
        if each.name not in excluded and form in each.forms
    ]
    chosen: list[Mechanism] = []
    for _ in range(chance.choice((1, 1, 2, 2, 3, 4, 5, 6))):
        each = chance.choice(possible)
        if each.alone:
            chosen = [each]
            break
        chosen.append(each)
    readers = tuple(_reader(chance, number, each) for number, each in enumerate(chosen))
    program = Program(seed, form, readers, ())
    return replace(program, history=tuple(_history(chance, program)))


def plain(name: str) -> Program:
    """The mechanism alone, in the plainest way, with each of its changes in turn."""
    kind = mechanisms()[name]
    use = NUMBER_USES[1] if kind.read else TENSOR_USES[1]
    reader = Reader(0, name, use=use)
    history: list[Call | Change] = [Call(), Call()]
    first = 0
    for number, group in enumerate(_statement_groups(reader)):
        choice = first + (number + 1) % len(group)  # another value each time
        history += [Change(0, choice), Call(), Call()]
        first += len(group)
    if not first:
        history += [Call(layout=layout) for layout in LAYOUTS]
    form = PLAIN_FORM if PLAIN_FORM in kind.forms else kind.forms[0]
    return Program(0, form, (reader,), tuple(history))


def unchanged(name: str, calls: int = 5) -> Program:
    """The mechanism alone, and nothing changes."""
    return replace(plain(name), history=(Call(),) * calls)


def _reader(chance: random.Random, number: int, kind: Mechanism) -> Reader:
    uses = NUMBER_USES if kind.read else TENSOR_USES
    held = kind.object and chance.random() < 0.7
    placed = chance.random() < 0.8
    return Reader(
        number,
        kind.name,
        chance.choice(list(holders())) if held else PLAIN_HOLDER,
        chance.choice(list(placements())) if placed else PLAIN_PLACEMENT,
        chance.choice(uses),
    )


def _history(chance: random.Random, program: Program) -> Iterator[Call | Change]:
    yield from (Call(), Call())
    for _ in range(chance.randint(2, 6)):
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            yield _change(chance, program)
        for _ in range(chance.choice((1, 2, 2, 3))):
            rows = chance.choice((2, 2, 2, 3))
            k = chance.choice((None, None, None, 2.0))
            yield Call(rows, k, chance.choice((*LAYOUTS[:1] * 5, *LAYOUTS)))


def _change(chance: random.Random, program: Program) -> Change:
    reader = chance.choice(program.readers)
    count = len(statements(reader))
    if not count or chance.random() < 0.1:
        return Change(None, chance.randrange(100))
    return Change(reader.number, chance.randrange(count))


def statements(reader: Reader) -> list[str]:
    """Every change of what a reader reads, with each value."""
    return [each for group in _statement_groups(reader) for each in group]


def _statement_groups(reader: Reader) -> list[list[str]]:
    """The statements of each change, one for each value."""
    kind, groups = reader.kind, []
    changes = list(kind.changes)
    if kind.object:
        assign = holders()[reader.holder].assign
        changes.append(assign.replace("OBJECT", kind.object))
    for change in changes:
        values = kind.values if "VALUE" in change else ("",)
        texts = (change.replace("VALUE", value) for value in values)
        groups.append([_outside(reader, text).strip() for text in texts])
    return groups


# -- source ----------------------------------------------------------------------------


def _numbered(text: str, reader: Reader) -> str:
    return text.replace("_N", f"_{reader.number}")


def _outside(reader: Reader, text: str) -> str:
    outside = holders()[reader.holder].outside
    return _numbered(re.sub(r"\bOBJ\b", outside, text), reader)


def source(program: Program) -> str:
    """The program: definitions, the owner, and `subject`, which is called."""
    parts = [_Emitted(reader, program.form) for reader in program.readers]
    methods = "\n".join(part.method for part in parts)
    body = "\n".join(part.statement for part in parts)
    lines = [part.top for part in parts]
    lines += [_owner(program.form, methods, body)]
    lines += [part.after for part in parts]
    text = "\n".join([*lines, _subject(program.form, body)]).rstrip() + "\n"
    return f"{_imports(program, text)}\n{text}"


def _imports(program: Program, text: str) -> str:
    """What the program and its changes name."""
    changes = [
        program.statement(each) for each in program.history if isinstance(each, Change)
    ]
    said = "\n".join([text, *changes, *program.cleanups])
    used = [name for name in sorted(IMPORTS) if re.search(rf"\b{name}\b", said)]
    found = "".join(f"import {name}\n" for name in used)
    return found + "from torch import nn\n" * bool(re.search(r"\bnn\b", said))


class _Emitted:
    """The text of one reader."""

    def __init__(self, reader: Reader, form: str) -> None:
        kind = reader.kind
        holder = holders()[reader.holder]
        placement = placements()[reader.placement]
        self._reader, self._in_class = reader, form in ("module", "method", "callable")
        frame = holder.frame if kind.object else ""
        if kind.before and not frame:
            frame = "def frame_N(x):\n    BEFORE\n    return EXPR\n"
        made = kind.object.replace("VALUE", kind.values[0])
        definition = holder.definition if kind.object else ""
        expression = self._expression(kind)
        self.statement = self.method = ""
        self.top = self._text(kind.setup + "\n" + definition.replace("OBJECT", made))
        self.after = self._text(
            (holder.after if kind.object else "").replace("OBJECT", made)
        )
        if not expression:
            return
        if frame:
            framed = _framed(frame, kind.before, expression).replace("OBJECT", made)
            self.top += self._text(framed, holder)
            expression = "frame_N(x)"
        self._place(placement, holder, expression)

    def _expression(self, kind: Mechanism) -> str:
        if kind.apply:
            return kind.apply
        read = kind.read or kind.tensor
        return self._reader.use.replace("READ", f"({read})") if read else ""

    def _place(self, placement: Placement, holder: Holder, expression: str) -> None:
        call = placement.call.replace("EXPR", expression)
        me = "self" if self._in_class else "owner"
        self.statement = self._text(f"x = {call}", holder, me)
        self.top += self._text(placement.definition.replace("EXPR", expression), holder)
        self.method = self._text(
            placement.method.replace("EXPR", expression), holder, "self"
        )
        self.after += self._text(placement.after)

    def _text(self, text: str, holder: Holder | None = None, me: str = "owner") -> str:
        if holder is not None:
            text = re.sub(r"\bOBJ\b", holder.inside, text)
        text = text.replace("SELF", me)
        return _numbered(text, self._reader).strip("\n") + "\n" if text.strip() else ""


def _framed(frame: str, before: str, expression: str) -> str:
    """A frame with its body in place, indented as its placeholder is."""
    lines = []
    for line in frame.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if line.strip() == "BEFORE":
            if before:
                lines.append(textwrap.indent(before.strip("\n"), indent))
        else:
            lines.append(line.replace("EXPR", expression))
    return "\n".join(lines)


def _owner(form: str, methods: str, body: str) -> str:
    base = "nn.Module" if form == "module" else "object"
    name = {"module": "forward", "method": "step", "callable": "__call__"}.get(form)
    inside = methods
    if name is not None:
        inside += f"\ndef {name}(self, x, k=1.0):\n"
        inside += textwrap.indent(f"x = x * k\n{body}\nreturn self.finish(x)", "    ")
    inside = textwrap.indent(inside.strip("\n") or "pass", "    ")
    return (
        f"class Parent({base}):\n    def finish(self, x):\n        return x * 1\n\n"
        f"class Owner(Parent):\n{inside}\n\nowner = Owner()\n"
    )


def _subject(form: str, body: str) -> str:
    if form in ("module", "callable"):
        return "subject = owner\n"
    if form == "method":
        return "subject = owner.step\n"
    step = "def step(x, k=1.0):\n"
    step += textwrap.indent(f"x = x * k\n{body}\nreturn x * 1\n", "    ")
    if form == "function":
        return f"{step}\nsubject = step\n"
    if form == "partial":
        return f"{step}\nsubject = functools.partial(step, k=1.0)\n"
    inner = step.replace("x = x * k\n", "x = x * k * outer\n")
    setter = "def set_outer(value):\n    nonlocal outer\n    outer = value\n"
    return (
        "def make_step(outer):\n"
        + textwrap.indent(f"{inner}\n{setter}\nreturn step, set_outer\n", "    ")
        + "\nsubject, set_outer = make_step(1.0)\n"
    )
