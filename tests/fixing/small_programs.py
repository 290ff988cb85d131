"""Small programs around the patterns that rewrites know, generated at random.

A program is the text of a module with a class `Net`; one line, marked `# here`, breaks
the graph. The parts are chosen so that many programs must be refused: side effects,
aliases, undefined names, other types.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from torchproof.checking import by_code
from torchproof.fixing import rewrites
from torchproof.fixing.behaviour import Behaviour, behaviour, with_unseen
from torchproof.fixing.equality import Reference, equality
from torchproof.fixing.proof_job import Equality
from torchproof.records import Finding, Frame
from torchproof.targets import Loaded

HEAD = """\
import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("memory", torch.zeros(4))
        self.history = []
        self.count = 0
        self.limit = 1.5

    def forward(self, x, n):
"""
CONDITIONS = (
    "y.sum() > 0",
    "(y > self.limit).any()",
    "torch.isnan(y).any()",
    "not torch.isfinite(y).all()",
    "y.max().item() > n.sum().item()",
    "bool((n > 2).all())",
    "y.mean() > 0 and n.max() > 3",
    "n.min() < 0 or torch.isinf(y).any()",
    "y.abs().max() >= 0.5 and self.count == 0",
)
VALUES = (
    "y",
    "-y",
    "y + 1",
    "y * n.float().mean()",
    "torch.zeros_like(y)",
    "torch.clamp(y, -1, 1)",
    "y / y.sum()",
    "torch.sqrt(y)",
    "y.half().float()",
    "y[:, :2].repeat(1, 2)",
    "y.t().t()",
    "x",
    "torch.rand_like(y)",
    "self.linear(y)",
    "y // n.min()",
    "y.int()",
    "F.dropout(y, 0.5)",
    "y.exp_()",
    "self.remember(y)",
)
EFFECTS = (
    "",
    "self.count += 1",
    "self.history.append(y)",
    "print('seen')",
    "y.add_(1)",
    "self.memory.copy_(y[0].detach())",
    "self.memory = y[0].detach()",
)
ERRORS = ("ValueError('bad')", "RuntimeError", "AssertionError('no')", "KeyError(1)")
TAIL = """
        return {result}

    def remember(self, y):
        self.history.append(y.detach())
        return y * 2
"""


@dataclass(frozen=True)
class Program:
    code: str  # of the rule whose finding it is
    text: str

    @property
    def line(self) -> int:
        lines = self.text.splitlines()
        return next(i for i, line in enumerate(lines, 1) if "# here" in line)


def _indented(*lines: str, by: int = 8) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in lines if line.strip())


@st.composite
def branches(draw: st.DrawFn) -> Program:
    """`if` with two branches, or with one."""
    condition, one, other = draw(_condition), draw(_value), draw(_value)
    effect, result = draw(_effect), draw(st.sampled_from(("z", "z + y", "(z, y)")))
    has_else = draw(st.booleans())
    body = _indented("y = self.linear(x)", "z = y" if not has_else else "")
    body += _indented(f"if {condition}:  # here")
    body += _indented(f"z = {one}", effect, by=12)
    if has_else:
        body += _indented("else:") + _indented(f"z = {other}", by=12)
    return Program("GB102", HEAD + body + TAIL.format(result=result))


@st.composite
def expressions(draw: st.DrawFn) -> Program:
    """A conditional expression."""
    text = f"z = {draw(_value)} if {draw(_condition)} else {draw(_value)}  # here"
    body = _indented("y = self.linear(x)", text)
    return Program("GB102", HEAD + body + TAIL.format(result="z"))


@st.composite
def validations(draw: st.DrawFn) -> Program:
    condition, error, effect = draw(_condition), draw(_error), draw(_effect)
    body = _indented("y = self.linear(x)")
    if draw(st.booleans()):
        body += _indented(f"assert not ({condition})  # here")
    else:
        body += _indented(f"if {condition}:  # here")
        body += _indented(effect, f"raise {error}", by=12)
    return Program("GB102", HEAD + body + TAIL.format(result="y * 2"))


@st.composite
def masked_writes(draw: st.DrawFn) -> Program:
    mask = draw(st.sampled_from(("y > 0", "torch.isnan(y)", "y > n.float()[:, None]")))
    value = draw(
        st.sampled_from(
            (
                "0.0",
                "y[mask] * 2",
                "y[mask].mean()",
                "y[mask].cumsum(0)",
                "x[mask]",
                "torch.log(y[mask])",
                "y[mask] + torch.rand_like(y[mask])",
            )
        )
    )
    target = draw(st.sampled_from(("z", "y", "x", "self.memory.expand(2, 4)")))
    body = _indented("y = self.linear(x)", "z = y.clone()", f"mask = {mask}")
    body += _indented(f"{target}[mask] = {value}  # here")
    return Program("GB103", HEAD + body + TAIL.format(result="z + y"))


@st.composite
def readings(draw: st.DrawFn) -> Program:
    """A value that is read, and kept or used."""
    read = draw(st.sampled_from(("y.mean().item()", "float(y.sum())", "y[0].tolist()")))
    use = draw(
        st.sampled_from(
            (
                "self.history.append(value)",
                "self.count = value",
                "y = y * value",
                "print(value)",
                "y = y if value else -y",
            )
        )
    )
    body = _indented("y = self.linear(x)", f"value = {read}  # here", use)
    return Program("GB101", HEAD + body + TAIL.format(result="y"))


@st.composite
def numbers(draw: st.DrawFn) -> Program:
    """A Python number that is computed with torch or numpy."""
    size = draw(st.sampled_from(("x.shape[0]", "-x.shape[1]", "x.size(1) - 5", "n")))
    other = draw(st.sampled_from(("2", "-3", "x.shape[1]", "self.limit")))
    mode = draw(st.sampled_from(("floor", "trunc")))
    value = draw(
        st.sampled_from(
            (
                f"torch.div({size}, {other}, rounding_mode='{mode}')",
                f"torch.tensor([{size}, {other}]).max().item()",
                f"torch.tensor({other}).item()",
                f"np.prod([{size}, {other}])",
                f"np.sum([{size}, {other}])",
                f"int(np.ceil({size} / {other}))",
                f"np.max([{size}, {other}])",
            )
        )
    )
    body = _indented("y = self.linear(x)", f"value = {value}  # here")
    text = HEAD + body + TAIL.format(result="y * value")
    return Program("GB101", f"import numpy as np\n{text}")


@st.composite
def draws(draw: st.DrawFn) -> Program:
    """A random number that decides whether a layer runs."""
    rate = draw(st.sampled_from(("0.0", "0.5", "self.rate", "n.sum()")))
    number = draw(st.sampled_from(("torch.rand([])", "torch.randn([])")))
    operator = draw(st.sampled_from(("<", "<=", ">", ">=")))
    skip = draw(st.sampled_from(("self.training and drawn", "drawn")))
    body = _indented(
        "y = self.linear(x)",
        f"self.rate = {rate}" if rate != "self.rate" else "self.rate = 0",
        f"drawn = {number}",
        f"skip = {skip} {operator} self.rate",
        "if not skip:  # here",
    )
    body += _indented(draw(st.sampled_from(("y = y * 2", "y = self.linear(y)"))), by=12)
    return Program("GB102", HEAD + body + TAIL.format(result="y"))


_condition = st.sampled_from(CONDITIONS)
_value = st.sampled_from(VALUES)
_effect = st.sampled_from(EFFECTS)
_error = st.sampled_from(ERRORS)
PROGRAMS = st.one_of(
    branches(),
    expressions(),
    validations(),
    masked_writes(),
    readings(),
    numbers(),
    draws(),
)


# -- running them ----------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def module(text: str) -> types.ModuleType:
    """The same code object for the same text, so that torch compiles it once."""
    made = types.ModuleType("small_program")
    exec(compile(text, "small_program.py", "exec"), made.__dict__)
    return made


def inputs(seed: int) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 4, generator=generator) * (1 + seed % 3)
    if seed % 5 == 4:
        x[0, 0] = (float("nan"), float("inf"), -float("inf"))[seed % 3]
    return x, torch.randint(-1, 5, (2,), generator=generator)


def loaded(text: str, seeds: range) -> Loaded:
    torch.manual_seed(0)
    net = module(text).Net()
    calls = [inputs(seed) for seed in seeds]
    return Loaded(net, calls, None, Frame("small_program.py", 1, "make"))


def shown(
    text: str, seeds: range, *, compiled: bool = False, varied: bool = False
) -> Behaviour | str:
    """What the program shows, or the type of the exception that it raises.

    With `varied`, also what variations of its calls show.
    """
    made = loaded(text, seeds)
    fn: Any = made.fn
    if compiled:
        fn = torch.compile(made.fn, backend="aot_eager")
    try:
        found = behaviour(made, fn, train=False)
        if not varied:
            return found
        return with_unseen(found, lambda: (made, fn), train=False)
    except Exception as error:
        return type(error).__name__


def drafts(program: Program) -> list[rewrites.Draft]:
    """The edits that the rewrites of the rule offer for the marked line."""
    finding = Finding(
        program.code, "graph_break", "high", "", "", "", "small_program.py"
    )
    offered = []
    for name in by_code(program.code).rewrites:
        file = rewrites.File("small_program.py", program.text)
        try:
            site = rewrites.Site(finding, file, program.line)
            offered.append(rewrites.named(name)(site))
        except rewrites.Refused:
            continue
    return offered


def proved(original: str, edited: str, seeds: range) -> Equality | None:
    """The proof that `fix` makes, in this process; None if a version does not run."""
    versions = [
        shown(original, seeds, varied=True),
        shown(edited, seeds, varied=True),
        shown(edited, seeds, varied=True, compiled=True),
    ]
    eager, edited_eager, edited_compiled = versions
    if isinstance(eager, str) or isinstance(edited_eager, str):
        return None
    reference = Reference(eager, None, [], None)
    return equality(reference, edited_eager, edited_compiled, "aot_eager")
