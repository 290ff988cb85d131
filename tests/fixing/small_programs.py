"""Small programs around the patterns that rewrites know, generated at random.

A program is the text of a module with a class `Net`; one line, marked `# here`, breaks
the graph. The parts are chosen so that many programs must be refused: side effects,
aliases, undefined names, other types.
"""

from __future__ import annotations

import functools
import re
import textwrap
import types
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from torchproof.checking import by_code
from torchproof.fixing import rewrites
from torchproof.fixing.behaviour import Behaviour, behaviour, with_unseen
from torchproof.fixing.equality import Reference, equality, failed
from torchproof.fixing.proof_job import Equality
from torchproof.records import Finding, Frame
from torchproof.targets import Loaded

# What may stand for `{name}` in a template, between `|`.
CHOICES = """
condition: y.sum() > 0 | (y > self.limit).any() | torch.isnan(y).any()
condition: not torch.isfinite(y).all() | y.max().item() > n.sum().item()
condition: bool((n > 2).all()) | y.mean() > 0 and n.max() > 3
condition: n.min() < 0 or torch.isinf(y).any()
condition: y.abs().max() >= 0.5 and self.count == 0
value: y | -y | y + 1 | y * n.float().mean() | torch.zeros_like(y) | y / y.sum() | x
value: torch.clamp(y, -1, 1) | torch.sqrt(y) | y.half().float() | y.t().t() | y.int()
value: y[:, :2].repeat(1, 2) | torch.rand_like(y) | self.linear(y) | y // n.min()
value: F.dropout(y, 0.5) | y.exp_() | self.remember(y)
effect: pass | self.count += 1 | self.history.append(y) | print('seen') | y.add_(1)
effect: self.memory.copy_(y[0].detach()) | self.memory = y[0].detach()
error: ValueError('bad') | RuntimeError | AssertionError('no') | KeyError(1)
result: z | z + y | (z, y)
mask: y > 0 | torch.isnan(y) | y > n.float()[:, None]
masked: 0.0 | y[mask] * 2 | y[mask].mean() | y[mask].cumsum(0) | x[mask]
masked: torch.log(y[mask]) | y[mask] + torch.rand_like(y[mask])
target: z | y | x | self.memory.expand(2, 4)
read: y.mean().item() | float(y.sum()) | y[0].tolist()
use: self.history.append(value) | self.count = value | y = y * value | print(value)
use: y = y if value else -y
size: x.shape[0] | -x.shape[1] | x.size(1) - 5 | n
other: 2 | -3 | x.shape[1] | self.limit
number: torch.div({size}, {other}, rounding_mode='floor') | np.prod([{size}, {other}])
number: torch.div({size}, {other}, rounding_mode='trunc') | np.sum([{size}, {other}])
number: torch.tensor([{size}, {other}]).max().item() | torch.tensor({other}).item()
number: int(np.ceil({size} / {other})) | np.max([{size}, {other}])
rate: 0.0 | 0.5 | 0 | n.sum()
draw: torch.rand([]) | torch.randn([])
skip: self.training and drawn | drawn
operator: < | <= | > | >=
layer: y = y * 2 | y = self.linear(y)
"""
# The rule whose finding is at the marked line, and lines of `forward`.
TEMPLATES = """
GB102
if {condition}:  # here
    z = {value}
    {effect}
else:
    z = {value2}
return {result}

GB102
z = y
if {condition}:  # here
    z = {value}
    {effect}
return {result}

GB102
z = {value} if {condition} else {value2}  # here
return z

GB102
assert not ({condition})  # here
return y * 2

GB102
if {condition}:  # here
    {effect}
    raise {error}
return y * 2

GB102
self.rate = {rate}
drawn = {draw}
skip = {skip} {operator} self.rate
if not skip:  # here
    {layer}
return y

GB103
z = y.clone()
mask = {mask}
{target}[mask] = {masked}  # here
return z + y

GB101
value = {read}  # here
{use}
return y

GB101
value = {number}  # here
return y * value
"""
HEAD = """\
import numpy as np
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

    def remember(self, y):
        self.history.append(y.detach())
        return y * 2

    def forward(self, x, n):
        y = self.linear(x)
"""


@dataclass(frozen=True)
class Program:
    code: str  # of the rule whose finding it is
    text: str

    @property
    def line(self) -> int:
        lines = self.text.splitlines()
        return next(i for i, line in enumerate(lines, 1) if "# here" in line)


def _choices(name: str) -> list[str]:
    lines = re.findall(rf"^{name.rstrip('2')}: (.*)", CHOICES, re.M)
    return [choice for line in lines for choice in line.split(" | ")]


@st.composite
def _programs(draw: st.DrawFn) -> Program:
    code, _, lines = (
        draw(st.sampled_from(TEMPLATES.split("\n\n"))).strip().partition("\n")
    )
    while name := re.search(r"\{(\w+)\}", lines):
        lines = lines.replace(name[0], draw(st.sampled_from(_choices(name[1]))))
    lines = re.sub(r" *pass\n", "", lines)
    return Program(code, HEAD + textwrap.indent(lines, " " * 8) + "\n")


PROGRAMS = _programs()


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
    if isinstance(edited_compiled, str):
        return failed(edited_compiled, "aot_eager")
    reference = Reference(eager, None, [], None)
    return equality(reference, edited_eager, edited_compiled, "aot_eager")
