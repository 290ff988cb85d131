"""The patterns of the rewrites: lines that a rewrite edits, and lines that it refuses.

`== name` begins lines that are edited, `!! name` lines that are refused; one line may
stand behind a `|`. The comment `# <-` marks the finding, `# <- expression` its columns
as well.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sites import function_of

from torchproof.fixing import call_probe
from torchproof.fixing.observed_calls import ObservedCall
from torchproof.fixing.rewrites import (
    Rewrite,
    branches,
    contexts,
    effects,
    host_values,
    layer_drop,
    lifetimes,
    masks,
    numbers,
    shortcuts,
    validation,
)

NAN, INF = float("nan"), float("inf")


def step(parameters: str, end: str = "", head: str = "import torch\n") -> str:
    """A module with a function, in which `{}` stands for the lines."""
    return f"{head}\n\ndef step({parameters}):\n    {{}}\n{end}"


@dataclass(frozen=True)
class Family:
    """Cases of one rewrite.

    `calls` are the arguments of `step`, called one after the other in eager; compiled,
    the first `in_one_graph` of them. Without `calls` only the text is tested.
    """

    rewrite: Rewrite
    cases: str
    frame: str
    calls: tuple[tuple[Any, ...], ...] = ()
    code: str = "GB102"
    in_one_graph: int = 99
    gradients: tuple[int, ...] = ()  # arguments that require one
    observes: bool = False  # the rewrite looks at what the program computes

    def probe(self, text: str) -> Sequence[ObservedCall]:
        """What the probes in a program record."""
        call_probe.observed.clear()
        if self.observes:
            torch.manual_seed(0)
            step = function_of(text)
            for call in self.calls:
                step(*call)
        return list(call_probe.observed)

    def programs(self, sign: str) -> dict[str, str]:
        """The program of each case that begins with `==` or `!!`."""
        text = re.sub(r"^((?:==|!!) .*?) \| ", r"\1\n", self.cases, flags=re.M)
        found = re.split(r"^(==|!!) (.*)\n", text, flags=re.M)[1:]
        rows = zip(found[::3], found[1::3], found[2::3], strict=True)
        return {name: self._program(text) for each, name, text in rows if each == sign}

    def _program(self, lines: str) -> str:
        margin = re.search(r"^( *)\{\}", self.frame, re.M)
        assert margin is not None
        indented = textwrap.indent(lines.rstrip("\n"), margin[1])
        return self.frame.replace(margin[0], indented)


# -- branches --------------------------------------------------------------------------

SELECTED = """\
== each of a list
parts = [x, y]
if x.sum() > 0:  # <-
    parts = [each * (n / x.sum()) for each in parts]
return parts[0] + parts[1]
== no else
# Large values are cut.
if x.max() > n:  # <- x.max() > n
    x = x.clamp(-1, 1)  # both sides
return x + y
== several names
if x.sum() > 0:  # <-
    x, y = y + 1, x - 1
return x - y
== a name of the branch
if x.dtype == torch.float and (torch.isinf(x).any() or torch.isnan(x).any()):  # <-
    limit = torch.finfo(x.dtype).max - 1000
    x = torch.clamp(x, min=-limit, max=limit)
return x + y
== a value used twice
if x.sum() > 0:  # <-
    z = x + 1
    w = z * 2
else:
    z = x - 1
    w = y
return z + w
== expression
return x * 2 if not (x.sum().item() > 0.1) else y  # <- x.sum().item() > 0.1
== early return
low, high = x.min(), x.max()
if high == low:  # <-
    return torch.zeros_like(x)
return (x - low) / (high - low)
== early return of a tuple
if x.sum() < 0:  # <-
    return x, y
z = x * y
return z, z + 1
== square root
if x.min() > 0:  # <-
    x = x.sqrt() + torch.log(x)
return x + y
== part of a tensor
y = y.clone()
if x.sum() > 0:  # <-
    y[0] = x[0] + 1
return y
== python or tensor
if n is None or x.sum() > n:  # <- x.sum() > n
    x = y
return x * 1
== python and tensor, with else
if n > 1 and x.sum() > n:  # <- x.sum() > n
    x = y
else:
    x = x + 1
return x * 1
== elif
if n is None:
    x = y
elif x.sum() > n:  # <-
    x = x + 1
return x * 1
== numbers
scale = 0.1 if x.sum() > 0 else 2.0  # <- x.sum() > 0
return x * scale
"""
IN_A_BRANCH = """\
!! side effect | y = n.pop()
!! print | print(x)
!! random | y = torch.rand_like(x)
!! None | y = None
!! list | y = [x]
!! integer division | y = x // y
!! remainder | y = x % y
!! index | y = x[n]
!! gradient | y = x.acos()
!! number or tensor | y = 0.0
!! layer | y = n.layer(x)
!! raise | raise ValueError
!! unused | z = x + 1
"""
NOT_SELECTED = """\
!! a condition on sizes | x = int(y.max()) + 1 if len(y) > 0 else 0  # <-
!! a number read before
m = x.max().item()
if m > 2:  # <-
    x = x + 1
!! fewer of a list
parts = [x, y]
if x.sum() > 0:  # <-
    parts = [each for each in parts if each is x]
x = torch.stack(parts)
!! another list
parts = [x, y]
if x.sum() > 0:  # <-
    parts = [each + 1 for each in [x]]
x = torch.stack(parts)
!! alias of another
z = x[0]
if x.sum() > 0:  # <-
    y = x
z.add_(1)
!! while
while x.sum() > 0:  # <-
    x = x - 1
!! loop
if x.sum() > 0:  # <-
    for each in y:
        x = each
!! no value before
if x.sum() > 0:  # <-
    z = x
y = z
!! in place
if x.sum() > 0:  # <-
    y += 1
!! alias with +=
if x.sum() > 0:  # <-
    y = x
y += 1
!! a number that a function gives
def level(x):
    return x.abs().mean().item()
if level(y) > 0.1:  # <- level(y) > 0.1
    y = y + 1
!! what a function gives
if n.level(y) > 0.1:  # <- n.level(y) > 0.1
    y = y + 1
!! None before
z = None
if x.sum() > 0:  # <-
    z = x
y = z
!! stored, then used
if x.sum() > 0:  # <-
    n.y = x
    y = n.y + 1
"""
ATTRIBUTE = """\
== attribute
if x.max() > self.largest:  # <-
    self.largest = x.max()
"""
NET = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))
        self.table = torch.nn.Buffer(torch.arange(32.0).view(8, 4), persistent=False)

    def forward(self, x, other=None):
        {}
        return x / 2 + self.largest + self.table[: x.shape[0]]


NET = Net()


def step(x):
    return NET(x), NET.largest, NET.table
"""
THREE = (
    (1.0, 2.0, 3.0),
    (-1.0, -2.0, 0.5),
    (4.0, 4.0, 4.0),
    (0.0, 0.0, 0.0),
    # Compiled gradients at infinities differ from eager ones, edited or not.
    (1.0, NAN, 3.0),
    (1.0, INF, -INF),
)
BRANCHES = tuple((torch.tensor(x), torch.tensor([0.5, -2.0, 2.0])) for x in THREE)

# -- masks -----------------------------------------------------------------------------

WRITTEN = """\
== augmented
# Only those that are positive.
x[x > 0] += y[x > 0]  # <-
return x
== functions with infinite gradients
mask = x > 0
x[mask] = x[mask].sqrt() / y[mask]  # <- x[mask]
return x
== several statements
mask = ~torch.isnan(x)
some = x[mask]  # <- x[mask]
some = torch.tanh(some)
x[mask] = some
return x
== a copy
y[x > y] = x[x > y]  # <-
return y
== rows
mask = x.sum(-1) > 0
x[mask] = x[mask].exp()  # <- x[mask]
return x
!! not elementwise | x[m] = x[m].softmax(-1)  # <-
!! reduction | x[m] = x[m] - x[m].mean()  # <-
!! another mask | x[m] = y[~m]  # <-
!! another index | x[m] = x[m] * y[0]  # <-
!! not masked | x[m] = x[m] * y  # <-
!! remainder | x[m] = x[m] % y[m]  # <-
!! side effect | x[m] = f(x[m])  # <-
!! random | x[m] = torch.rand_like(x[m])  # <-
!! used again
v = x[m]  # <-
x[m] = v * 2
y = v.sum()
!! changed in between
v = x[m]  # <-
x.add_(1)
x[m] = v * 2
!! not stored | y = x[m]  # <-
!! singular | x[m] = x[m].acos()  # <-
"""
INTEGERS = """\
== the elements that are not selected are not rounded to a float
mask = x > y
x[mask] = x[mask] / 2  # <- x[mask]
return x
"""
MASKS = tuple(
    (torch.tensor(x), torch.tensor([[0.0, 2.0], [3.0, -1.0]]))
    for x in (
        [[1.0, -2.0], [3.0, 4.0]],
        [[-1.0, -2.0], [-3.0, -4.0]],
        [[1.0, 1.0], [1.0, 1.0]],
        [[NAN, 1.0], [-1.0, 0.0]],
        [[1.0, -INF], [INF, 0.0]],
    )
)
# -- numbers ---------------------------------------------------------------------------

NUMBERS = """\
== sum | k = int(np.sum(sizes[:n]))  # <-
== prod | k = np.prod(sizes)  # <-
== prod of a shape | k = np.prod(x.shape[:1])  # <-
!! more than one argument | k = np.sum(sizes, 0)  # <-
!! sum of a tensor | k = np.sum(x * 2)  # <-
!! read a tensor | k = torch.tensor(x).item()  # <-
!! type of numpy | k = np.prod(sizes).astype(int)  # <-
!! unknown function | k = np.unknown(sizes)  # <-
"""
OF_ANOTHER_FUNCTION = """\
== a number of another function
def common(config):
    return np.lcm(config.first, config.second)


def step(x, config):
    chunk = common(config)
    padded = (
        x.shape[0] % chunk != 0  # <-
        and x.shape[0] > 2
    )
    return x if padded else x + 1
"""
NUMBER = step(
    "x, n: int = 2, sizes=(2, 3)",
    "    return x.repeat(int(k))\n",
    "import numpy as np\nimport torch\n",
).replace("    {}", "    length = x.shape[0]\n    {}")

# -- Python data -----------------------------------------------------------------------

HOST_VALUES = """\
== statements up to the data
own = copy.deepcopy(self.config)  # <-
own.layers += 1
kinds = [name * i for name in own.names for i in range(own.layers)]
== one statement | kinds = copy.deepcopy(self.config.names)  # <-
== what may be missing is read in the function
kinds = copy.deepcopy(extra.names) if extra is not None else []  # <-
== a parameter does not hide a variable of the module
kinds = [copy.deepcopy(self.KINDS).layers, *KINDS[2]]  # <-
!! the copy itself, in the data | kinds = [copy.deepcopy(self.config)]  # <-
!! the copy is kept
own = copy.deepcopy(self.config)  # <-
kinds = [name * own.layers for name in own.names]
self.kept = own
!! a tensor is no data | kinds = [copy.deepcopy(x)]  # <-
!! numbers of a tensor | kinds = copy.deepcopy(x).tolist()  # <-
!! two statements | kinds = copy.deepcopy(self.config.names); self.n = 1  # <-
!! an attribute, too | self.n = kinds = copy.deepcopy(self.config.names)  # <-
!! a change of what is copied
names = self.config.names
kinds = [*copy.deepcopy(names), names.append("b")]  # <-
!! a random number | kinds = [torch.rand(()).item(), copy.deepcopy(extra)]  # <-
!! a change elsewhere | kinds = [*copy.deepcopy(extra or []), HISTORY.append(1)]  # <-
!! another value in each call | kinds = [next(self.numbers), copy.deepcopy(extra)]  # <-
!! the copy is stored
own = copy.deepcopy(self.config)  # <-
HISTORY.append(own)
kinds = [own.layers]
!! the copy is printed
own = copy.deepcopy(self.config)  # <-
print(own)
kinds = [own.layers]
!! the result is not new
own = copy.deepcopy(self.config)  # <-
kinds = KINDS[own.layers]
!! a name in an expression
own = copy.deepcopy(self.config)  # <-
n = 1
kinds = [own.layers, (n := 2)]
!! an import
own = copy.deepcopy(self.config)  # <-
import math
kinds = [own.layers]
!! a name that is read before
kinds = [1]
kinds = copy.deepcopy(kinds)  # <-
!! a return
kinds = []
return x, copy.deepcopy(self.config.names)  # <-
!! the whole module | kinds = copy.deepcopy(vars(self)["config"].names)  # <-
"""
COPIES = """\
== a tensor | y = copy.deepcopy(x)  # <-
== in an expression | y = torch.relu(copy.deepcopy(x) + y)  # <-
!! what may be an object with a tensor | y = copy.deepcopy(y)  # <-
!! an attribute may be a parameter | y = copy.deepcopy(x.grad)  # <-
!! a leaf of its own | y = copy.deepcopy(x).requires_grad_()  # <-
!! with a memo | y = copy.deepcopy(x, {})  # <-
"""
CONFIGURED = """\
import copy
from dataclasses import dataclass, field

import torch

HISTORY, KINDS = [], {2: ["a"]}


@dataclass
class Config:
    layers: int = 2
    names: list = field(default_factory=lambda: ["a"])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config = self.KINDS = Config()
        self.numbers = iter(range(100))

    def forward(self, x, extra=None):
        {}
        return x * len(kinds), kinds


NET = Net()


def step(x):
    y, kinds = NET(x)
    sizes = torch.tensor([len(str(kind)) for kind in kinds])
    kinds.append("")  # the next call has its own
    return y, sizes
"""

# -- output and checks -----------------------------------------------------------------

IN_GRAPH = """\
== print | print("mean", x.mean(), f"{x.max().item():.1f}")  # <-
== a file
with open("/dev/null", "w") as file:  # <-
    file.write(f"{tuple(x.shape)} {n}")
== logger
if n > 1:
    # The shape is known.
    logger.warning("%s of %d", tuple(x.shape), n)  # <-
== a condition on a tensor
if x.mean() > 0.5:  # <-
    print("large", torch.float32, x.dtype)
else:
    print("small")
== a number for the output
mean = x.mean().item()  # <-
largest = x.max().item()
print(f"{mean} {largest}")
total = 3
== a function that checks
assert_small(x.max(), lambda: f"{n} < {x.max().item()}")  # <-
== a check
if (x > n).any():  # <-
    raise ValueError(f"{x[x > n].tolist()} is more than {n}")
"""
NOT_IN_GRAPH = """\
!! a lock | with logger.lock: print(n)  # <-
!! a file that is read | with open("/dev/null") as file: x = x + len(file.read())  # <-
!! a name used later
mean = x.mean().item()  # <-
print(mean)
x = x - mean
!! an unknown function | print(n.update(x))  # <-
!! a change in place
if x.mean() > 0:  # <-
    print("positive")
    x.add_(1)
!! an assignment to an attribute
if x.mean() > 0:  # <-
    n.seen = True
    print("positive")
!! a return
if x.mean() > 0:  # <-
    print("positive")
    return x
!! no output | mean = x.mean().item()  # <-
"""
OF_OBJECTS = """\
== attributes become parameters | print(self.size, config.size, x.shape[0])  # <-
!! a logger of an object | self.logger.info("%s", x)  # <-
!! an object that only the caller knows | print(type(config).__name__, x.mean())  # <-
"""
SKIPPED = """\
== a check
if (x > n).any():  # <-
    raise ValueError(f"{x[x > n].tolist()} is more than {n}")
"""
LOGS = step(
    "x, n=9",
    "    return x + 1\n",
    "import logging\n\nimport torch\n\nlogger = logging.getLogger(__name__)\n\n\n"
    "def assert_small(x, message):\n    if x > 9:\n"
    "        raise ValueError(message())\n",
)
VALIDATION = """\
== any
# All ids are in the table.
if (x > 9).any():  # <-
    raise ValueError("too large")
== assert | assert x.max() < 9, f"{x.max()} of {n}"  # <-
== item with an exact number
if x.max().item() > 9:  # <- x.max().item()
    raise ValueError
== item with another number
if x.max().item() > n:  # <-
    raise IndexError("at most %s" % 9)
== format
if x.max() > n:  # <-
    raise IndexError("{} at most {}".format(x.max().item(), n))
== float
if float(x.max()) > 9.0:  # <-
    raise ValueError(f'{x.max().item():.2f} {{}}')
== python first
if n is not None and (x > n).any():  # <-
    raise ValueError("too large")
== python last
if (x > 9).any() and n == 9:  # <-
    raise ValueError("too large")
== python or tensor
if x.dim() > 3 or (x > 9).any():  # <-
    raise ValueError(f"{x.dim()} dimensions")
== chained | assert 0 <= x.max() <= 9, "range"  # <-
== equal
if not torch.equal(x, x.clamp(max=9)):  # <-
    raise ValueError("bad")
== allclose
if not torch.allclose(x, x.clamp(max=9), atol=0.5):  # <-
    raise ValueError("bad")
== held in a name
largest = x.max().item()  # <-
if largest > n:
    raise ValueError(f"{largest} is more than {n}")
== else
if (x > 9).any():  # <-
    raise ValueError("bad")
else:
    x = x + 1
== raises otherwise
if (x <= 9).all():  # <-
    x = x + 1
else:
    msg = "bad"
    raise ValueError(msg)
== a check of torch with an exception
torch._check_tensor_all_with(IndexError, x.le(9), lambda: "bad")  # <-
== a check of torch without a message | torch._check_tensor_all(x <= 9)  # <-
== elif
if n is None:
    x = x + 1
elif (x > 9).any():  # <-
    raise ValueError("bad")
!! a branch with an assignment
if (x > 9).any():  # <-
    n = 3
    x = x - 1
    raise ValueError("bad")
!! an operand with an effect
if (x > 9).any() and n.pop():  # <-
    raise ValueError("bad")
!! a message with an effect
if (x > 9).any():  # <-
    raise ValueError(n.pop())
!! a message that may fail
if (x > 9).any():  # <-
    raise ValueError(f"{x[x > 9][0]}")
!! an object instead of a message
if (x > 9).any():  # <-
    raise ValueError(3)
!! a cause
if (x > 9).any():  # <-
    raise ValueError("bad") from None
!! several arguments
if (x > 9).any():  # <-
    raise OSError(2, "bad")
!! a name used later
largest = x.max().item()  # <-
if largest > n:
    raise ValueError("bad")
x = x * largest
!! a message of torch's check that is made elsewhere
torch._check_tensor_all(x <= 9, n)  # <-
!! a check of torch with keywords | torch._check_tensor_all(cond=x <= 9)  # <-
!! Python values only
if n is None:  # <-
    raise ValueError("bad")
!! arithmetic with the number
if x.max().item() * 0.1 > n:  # <-
    raise ValueError("bad")
"""

# -- contexts --------------------------------------------------------------------------

CONTEXTS = """\
== an optional context
with torch.backends.cudnn.flags(enabled=False):  # <-
    y = (x * weight).sum()
== stopwatches, one of them here
with Watch([]):  # <-
    z = x * weight
with Watch([]):
    y = z.sum()
!! no_grad
with torch.no_grad():  # <-
    y = x * 2
!! what it does with tensors
with Scaled(x):  # <-
    y = x * 2
!! a name for it
with torch.profiler.profile() as p:  # <-
    y = x * 2
!! a lock
with lock:  # <-
    y = x * 2
"""
WATCHED = step(
    "x, weight",
    "    return y\n",
    """import time\n\nimport torch\n
class Watch:
    def __init__(self, times):
        self.times = times
    def __enter__(self):
        self.begin = time.perf_counter()
    def __exit__(self, *error):
        self.times.append(time.perf_counter() - self.begin)
class Scaled(Watch):
    def __enter__(self):
        self.times.mul_(time.time() - torch.e)
""",
)
WEIGHTS = ((torch.ones(2), torch.full((2,), 3.0)),)

# -- questions about selections --------------------------------------------------------

SHORTCUTS = """\
== the rest of a round
for i in range(3):
    rows, = torch.where(y == i)
    if len(rows) == 0:  # <-
        continue
    part = x[rows] * 2
    x[rows] += part
== of positions
rows = (y == 2).nonzero().squeeze(1)
if rows.numel() > 0:  # <-
    x = x.index_add(0, rows, x[rows] + 1)
== columns and sizes
rows, = torch.where(y == 2)
if len(rows) > 0:  # <-
    part = x[rows].float()[:, None] * y.shape[0]
    x[rows] = part[:, 0]
== of a mask
m = y == 1
if m.any():  # <-
    x[m] = x[m] * 3
!! another branch
m = y == 1
if m.any():  # <-
    x[m] = x[m] * 3
else:
    x = x + 1
!! everything
m = y == 1
if m.any():  # <-
    x = x + 1
!! of something else
rows = y
if len(rows) > 0:  # <-
    x[rows] = 3
!! the place 0
rows = (y == 2).nonzero().squeeze(1)
if rows.any():  # <-
    x[rows] = 3
!! the place 0 of one of several
rows, = torch.where(y == 2)
if rows.any():  # <-
    x[rows] = 3
!! what needs a row
m = y == 1
if m.any():  # <-
    x[m] = x[m].max()
!! one of the rows
rows = (y == 2).nonzero().squeeze(1)
if len(rows) > 0:  # <-
    first = rows[0]
    x[rows] = x[first]
!! one of what is at the rows
m = y == 1
if m.any():  # <-
    part = x[m] * 2
    x[m] = part - part[-1]
!! a number
rows = (y == 2).nonzero().squeeze(1)
if len(rows) > 0:  # <-
    x[rows] = float(x[rows])
!! each row
rows = (y == 2).nonzero().squeeze(1)
if len(rows) > 0:  # <-
    x[rows] = torch.stack([x[r] for r in rows])
!! unpacked
rows = (y == 2).nonzero().squeeze(1)
if len(rows) > 0:  # <-
    first, = rows
    x[rows] = x[first]
!! a list
rows = (y == 2).nonzero().squeeze(1)
if len(rows) > 0:  # <-
    n.append(rows)
!! at all rows
m = y == 1
if m.any():  # <-
    x[0] = x[m].sum()
!! a value that is used
m = y == 1
if m.any():  # <-
    z = x[m]
x = z
!! random numbers
m = y == 1
if m.any():  # <-
    x[m] = torch.rand(3)[m]
"""

# -- random draws ----------------------------------------------------------------------

RATE_FIRST = """\
== a name for the condition
draw = torch.rand([])
skip = training and draw < p
if not skip or not training:  # <-
    x = x * 2
== brackets
draw = torch.rand([])
if training and (p > draw):  # <-
    x = x * 2
== keeps the layer
draw = torch.rand([])
if not training or draw >= p:  # <-
    x = x * 2
== a draw of exactly 0
draw = torch.rand([])
if draw > p:  # <-
    x = x * 2
!! no random number
if x.sum() < p:  # <-
    x = x * 2
!! another distribution
draw = torch.randn([])
if draw < p:  # <-
    x = x * 2
!! assigned again
d = torch.rand([])
d = x[0]
if d < p:  # <-
    x = x * 2
!! the rate is a tensor
draw = torch.rand([])
if draw < x.sum():  # <-
    x = x * 2
"""
DROPPED = """\
== a name for the condition
draw = torch.rand([])
s = training and draw < p
if not s or n < 3:  # <-
    x = layer(x)
== continue
for i in range(3):
    # LayerDrop
    if training:
        draw = torch.rand([])
        if draw < p:  # <-
            continue
    x = layer(x)
== several statements
for i in range(3):
    if training and torch.rand(()) < p:  # <-
        continue
    h = layer(x)
    x = x + h.relu()
== two values
y = x + 1
for i in range(3):
    draw = torch.rand([])
    skip = training and draw < p
    if not skip:  # <-
        # both
        x, y = both(x, y)
!! a second value depends on the draw
draw = torch.rand([])
skip = training and draw < p
if not skip:  # <-
    x = layer(x)
    n = 4
x = x * n
!! the layer does not replace its input
draw = torch.rand([])
skip = training and draw < p
if not skip:  # <-
    y = layer(x)
!! a counter
for i in range(3):
    draw = torch.rand([])
    if draw < p:  # <-
        continue
    x = layer(x)
    n = n + 1
"""
RANDOM = "import random\n\nimport numpy as np\nimport torch\n"
LAYERS = "\n\ndef layer(x):\n    return x * 2\n"
LAYERS += "\n\ndef both(x, y):\n    return x * y, x + y\n"
RATES = tuple((torch.ones(2), p) for p in (0.0, 0.5, 1.0))
TRAINED = tuple((torch.ones(2), 0.5, t) for t in (True, False) for _ in range(5))

# -- lifetimes in CUDA graphs ----------------------------------------------------------

CLONE = """\
== appended | outs.append(f(x))  # <-
== attribute | self.scores = self.net(x)  # <-
== carried | h = cell(x, h)  # <-
== item | rows[i] = f(x)[0]  # <-
== comprehension | outs = [f(x) for x in xs]  # <-
== yielded | yield f(x)  # <-
== unpacked | a, b = f(x)  # <-
== changed before it is kept
y.mul_(2)
self.last = y  # <-
!! a copy | self.scores = f(x).clone()  # <-
!! a sum | total += f(x)  # <-
!! a rest | first, *rest = f(x)  # <-
!! a pair | pair = (f(x), f(y))  # <-
!! two statements | y = f(x); z = g(y)  # <-
!! an element is written later
self.last = y.detach()  # <-
if outs:
    y[0] = 0
!! += later
outs.append(y[0])  # <-
if outs:
    y += 1
!! the attribute is written later
self.last = y  # <-
if outs:
    self.last.zero_()
"""
DRIVE = "def drive({}):\n    {{}}\n"


def branch(rewrite: Rewrite, cases: str, end: str = "", **values: Any) -> Family:
    return Family(rewrite, cases, step("x, y, n=2.0", end), **values)


def drawn(rewrite: Rewrite, cases: str, head: str, p: float, **values: Any) -> Family:
    frame = step(f"x, p={p}, training=True, n=3", "    return x\n", head)
    return Family(rewrite, cases, frame, **values)


XY = "    return x + y\n"
BRANCH = step("x, y, n=2.0", XY).replace(
    "    {}", f"    if x.sum() > 0:  # <-\n{' ' * 8}{{}}"
)
MASKED = step("x, y", XY).replace("    {}", "    m = y > 0\n    {}")
GOOD, BAD = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 12.0])
LOGGED = tuple((torch.full((3,), value),) for value in (1.0, 0.25, 12.0))
FAMILIES = {
    "branches": branch(
        branches.select, SELECTED, calls=BRANCHES, in_one_graph=4, gradients=(0, 1)
    ),
    "branches refused": branch(branches.select, NOT_SELECTED, XY),
    "effects in branches": Family(branches.select, IN_A_BRANCH, BRANCH),
    "branches of attributes": Family(
        branches.select,
        ATTRIBUTE,
        NET,
        tuple((torch.full((3, 4), value),) for value in (1.0, 0.5, 3.0, 2.0)),
    ),
    "masks": Family(masks.write, WRITTEN, MASKED, MASKS, gradients=(0, 1)),
    "masks of integers": Family(
        masks.write,
        INTEGERS,
        MASKED,
        ((torch.tensor([9, 2**40 + 1]), torch.tensor([1, 2**40 + 1])),),
    ),
    "numbers": Family(
        numbers.in_python,
        NUMBERS,
        NUMBER,
        tuple((torch.arange(size),) for size in (4, 7, 9)),
    ),
    "numbers elsewhere": Family(
        numbers.in_python, OF_ANOTHER_FUNCTION, "import numpy as np\n\n\n{}\n"
    ),
    "host values": Family(
        host_values.data,
        HOST_VALUES,
        CONFIGURED,
        tuple((torch.full((2, 3), value),) for value in (1.0, 2.0, 3.0)),
        "GB109",
        observes=True,
    ),
    "copies of tensors": Family(
        host_values.clone,
        COPIES,
        step("x: torch.Tensor, y", XY, "import copy\n\nimport torch\n"),
        ((torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])),),
        "GB109",
    ),
    "effects": Family(effects.in_graph, IN_GRAPH, LOGS, LOGGED),
    "effects refused": Family(effects.in_graph, NOT_IN_GRAPH, LOGS),
    "effects of objects": Family(
        effects.in_graph,
        OF_OBJECTS,
        "class Model(torch.nn.Module):\n    def forward(self, x, config):\n"
        "        {}\n        return x\n",
    ),
    "skipped": Family(effects.skip_while_compiling, SKIPPED, LOGS, LOGGED[:2]),
    "skipped refused": Family(effects.skip_while_compiling, NOT_IN_GRAPH, LOGS),
    "validation": Family(
        validation.raise_if,
        VALIDATION,
        step("x, mask=None, n=9", "    return x + 1\n"),
        ((GOOD,), (BAD,)),
    ),
    "contexts": Family(
        contexts.skip, CONTEXTS, WATCHED, WEIGHTS, "GB111", gradients=(1,)
    ),
    "shortcuts": Family(
        shortcuts.always,
        SHORTCUTS,
        step("x, y, n=None", "    return x\n"),
        tuple((torch.ones(3), torch.tensor(v)) for v in ([0, 1, 1], [2, 2, 2])),
    ),
    "rate first": drawn(
        layer_drop.rate_first, RATE_FIRST, RANDOM, 0.0, calls=RATES, in_one_graph=1
    ),
    "layer drop": drawn(
        layer_drop.select, DROPPED, f"import torch\n{LAYERS}", 0.5, calls=TRAINED
    ),
    "clone": Family(
        lifetimes.clone, CLONE, DRIVE.format("self, f, x, xs, y, outs"), code="CG301"
    ),
}
