"""The remedy of a recompile, taken literally, removes it and changes no output."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchproof.checking import rules
from torchproof.fixing.edits import applied
from torchproof.records import Finding, Observation, blame

HEAD = "import torch\nfrom torch import nn\n"
TAIL = "\nopen(__file__ + '.out', 'w').write(repr(outputs))\n"


@dataclass(frozen=True)
class Case:
    """A program, the finding to remove, and what its remedy is.

    `edit` has the code to write where the remedy is a sentence: old and new.
    """

    code: str
    kind: str
    text: str
    edit: tuple[tuple[str, str], ...] = ()
    adds: tuple[str, ...] = ()  # codes that following the remedy may add


CASES = {
    "a size": Case(
        "RC201",
        "mark",
        """
        @torch.compile(backend="eager")
        def f(x, y):
            return x.sin() + y
        outputs = []
        for n in (4, 5, 6):
            x, batch = torch.ones(n), {"y": torch.ones(n)}
            outputs.append(f(x, batch["y"]))
        """,
    ),
    "a size that dynamic=False fixes": Case(
        "RC201",
        "mark",
        """
        @torch.compile(backend="eager", dynamic=False)
        def f(x):
            return x.sin()
        outputs = []
        for n in (4, 5, 6):
            x = torch.ones(n)
            outputs.append(f(x))
        """,
    ),
    "a size of what has no name": Case(
        "RC201",
        "setting",
        """
        @torch.compile(backend="eager")
        def f(x):
            return x.sin()
        outputs = [f(torch.ones(n)) for n in (4, 5, 6)]
        """,
    ),
    "two calls": Case(
        "RC201",
        "mark",
        """
        @torch.compile(backend="eager")
        def f(x):
            return x.sin()
        outputs = []
        train, valid = torch.ones(4), torch.ones(5)
        outputs.append(f(train))
        outputs.append(f(valid))
        """,
    ),
    "sizes that are equal at first": Case(
        "RC203",
        "mark",
        """
        @torch.compile(backend="eager", dynamic=True)
        def f(x, context):
            return torch.softmax(x @ context.T, -1) @ context
        outputs = []
        x = torch.ones(6, 8)
        for n in (6, 9, 10):
            context = torch.ones(n, 8)
            outputs.append(f(x, context))
        """,
    ),
    "a layout": Case(
        "RC204",
        "none",
        """
        @torch.compile(backend="eager")
        def f(x):
            return x + 1
        outputs = []
        for n in range(3):
            x = torch.ones(3, 4).T if n % 2 else torch.ones(4, 3)
            outputs.append(f(x))
        """,
        (("outputs.append(f(x))", "x = x.contiguous(); outputs.append(f(x))"),),
    ),
    "a dtype": Case(
        "RC205",
        "none",
        """
        @torch.compile(backend="eager")
        def f(x):
            return x + 1
        outputs = []
        for n in range(3):
            x = torch.ones(3, dtype=torch.int32 if n % 2 else torch.int64)
            outputs.append(f(x).tolist())
        """,
        (("outputs.append(", "x = x.to(torch.int64); outputs.append("),),
    ),
    "an inference tensor": Case(
        "RC206",
        "none",
        """
        @torch.compile(backend="eager")
        def f(x):
            return x + 1
        outputs = [f(torch.ones(3))]
        with torch.inference_mode():
            x = torch.ones(3)
        outputs.append(f(x))
        """,
        (("torch.inference_mode()", "torch.no_grad()"),),
    ),
    "one tensor for two": Case(
        "RC209",
        "none",
        """
        @torch.compile(backend="eager")
        def f(x, y):
            return x + y
        a, b = torch.ones(3), torch.ones(3)
        outputs = [f(a, b), f(a, a)]
        """,
        (("f(a, a)", "f(a, a.clone())"),),
    ),
    "a number with dynamic=False": Case(
        "RC210",
        "setting",
        """
        @torch.compile(backend="eager", dynamic=False)
        def f(x, n):
            return x * n
        outputs = [f(torch.ones(3), n) for n in (4, 5, 6, 7)]
        """,
    ),
    "an index beside a slice": Case(
        "RC210",
        "edit",
        """
        @torch.compile(backend="eager")
        def f(slots, x, at):
            slots[:, at] = x
            slots[:, at, 1:] += 2
            return slots.sum(0) + slots[0, :, at]
        slots, outputs = torch.zeros(2, 8, 8), []
        for at in (2, 3, 4, 5, 7):
            outputs.append(f(slots, torch.arange(8.0), at).tolist())
        """,
        adds=("RC210",),  # one recompile, then it is dynamic
    ),
    "an index of a list": Case(
        "RC210",
        "none",
        """
        @torch.compile(backend="eager")
        def f(x, at):
            return [x, x + 1, x + 2, x + 3, x + 4, x + 5][at]
        outputs = [f(torch.ones(2), at) for at in (2, 3, 4, 5)]
        """,
        adds=("RC210",),
    ),
    "a key of two numbers": Case(
        "RC210",
        "none",
        """
        KNOWN = {(0, at): float(at) for at in range(6)}
        @torch.compile(backend="eager")
        def f(x, at):
            return x * KNOWN[0, at]
        outputs = [f(torch.ones(2), at) for at in (2, 3, 4, 5)]
        """,
        adds=("RC210",),
    ),
    "an index that a loop counts": Case(
        "RC213",
        "setting",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.pos = 2
                self.register_buffer("table", torch.arange(20.))
            def forward(self, x):
                y = x * self.table[self.pos]
                self.pos += 1
                return y
        net = torch.compile(Net(), backend="eager")
        outputs = [net(torch.ones(3)) for _ in range(5)]
        """,
        adds=("RC213",),  # one recompile, then it is dynamic
    ),
    "a number that a variable still means": Case(
        "RC213",
        "setting",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.pos = 2
            def forward(self, x):
                start = self.pos
                self.pos += 1
                return x * (start + 1)
        net = torch.compile(Net(), backend="eager")
        outputs = [net(torch.ones(3)) for _ in range(5)]
        """,
        adds=("RC213",),
    ),
    "a counter that the code decides by": Case(
        "RC213",
        "setting",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.step, self.every = 0, 3
            def forward(self, x):
                warm = min(self.step / 4, 1.0)
                if self.step % self.every == 0:
                    x = x + 1
                self.step += 1
                return x * (warm + 1)
        net = torch.compile(Net(), backend="eager")
        outputs = [net(torch.ones(3)) for _ in range(7)]
        """,
        adds=("RC213", "RC299"),
    ),
    "a counter that a loop needs": Case(
        "RC213",
        "none",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.depth = 1
            def forward(self, x):
                rounds = self.depth + 1
                self.depth += 1
                for _ in range(rounds):
                    x = x * 2
                return x
        net = torch.compile(Net(), backend="eager")
        outputs = [net(torch.ones(3)) for _ in range(4)]
        """,
        adds=("RC213",),
    ),
    "a count of the file": Case(
        "RC214",
        "setting",
        """
        COUNT = 2
        @torch.compile(backend="eager")
        def f(x):
            global COUNT
            COUNT += 1
            return x * max(1.0, COUNT / 8)
        outputs = [f(torch.ones(2)) for _ in range(4)]
        """,
    ),
    "a count beside one that torch knows": Case(
        "RC214",
        "setting",
        """
        torch.compiler.config.dynamic_sources = "G['AT']"
        AT, COUNT = 2, 2
        @torch.compile(backend="eager")
        def f(x):
            return x * COUNT + AT
        outputs = []
        for _ in range(4):
            outputs.append(f(torch.ones(2)))
            AT += 1
            COUNT += 1
        """,
        (("torch.compiler.config.dynamic_sources = \"G['AT']\"\n", ""),),
    ),
    "a count of the file that a text needs": Case(
        "RC214",
        "none",
        """
        COUNT, SEEN = 2, {}
        @torch.compile(backend="eager")
        def f(x):
            global COUNT
            COUNT += 1
            SEEN["last"] = f"call {COUNT}"
            return x * COUNT
        outputs = [f(torch.ones(2)) for _ in range(4)]
        """,
        adds=("RC214", "RC212"),
    ),
    "a position between slices": Case(
        "RC210",
        "edit",
        """
        class Cached(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("k", torch.zeros(2, 9, 4))
            def forward(self, x, pos):
                self.k[:, pos] = x[:, 0]
                self.k[0, pos, 1:] += 1
                return self.k[..., pos - 1, :] + self.k[:, : pos + 1].sum(1)
        step = torch.compile(Cached(), backend="eager")
        outputs = [step(torch.ones(2, 1, 4), n).tolist() for n in (3, 4, 5, 6, 2)]
        """,
        adds=("RC210",),  # a recompile for a number, then it is an input
    ),
    "a position that modules pass on": Case(
        "RC210",
        "edit",
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("rows", torch.zeros(1, 9, 4))
            def forward(self, x, at=0):
                self.rows[:, at] = x
                return x + self.rows[:, at]
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.attend = Attention()
            def forward(self, x, index):
                return self.attend(x, at=index)
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList(Block() for _ in range(2))
                self.places = nn.Parameter(torch.ones(1, 9, 4))
            def forward(self, x, pos):
                x = x + self.places[:, pos]
                for block in self.blocks:
                    x = block(x, pos)
                return x
        fast = torch.compile(Model().requires_grad_(False), backend="eager")
        outputs = [fast(torch.ones(1, 4), pos) for pos in range(2, 8)]
        """,
        adds=("RC210",),
    ),
    "a position that a module counts": Case(
        "RC213",
        "edit",
        """
        class Cached(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("k", torch.zeros(1, 9, 4))
                self.seen = 0
            def forward(self, x):
                self.k[:, self.seen] = x
                self.seen += 1
                return self.k.sum(1)
        step = torch.compile(Cached(), backend="eager")
        outputs = [step(torch.ones(1, 4)) for _ in range(6)]
        """,
        adds=("RC213",),
    ),
    "prefill and decode at one line": Case(
        "RC202",
        "edit",
        """
        class Attend(nn.Module):
            def forward(self, x, past=None):
                kept = x if past is None else torch.cat([past, x], 1)
                return x + kept.mean(1, keepdim=True), kept
        net = Attend()
        model = torch.compile(net, backend="eager")
        outputs, past, x = [], None, torch.ones(1, 5, 4)
        for _ in range(4):
            y, past = model(x, past)
            x = y[:, -1:]
            outputs.append(x)
        """,
        adds=("RC204",),  # the first token is a part of what the prompt returned
    ),
    "prefill and decode in a function": Case(
        "RC202",
        "edit",
        """
        class Cached(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("k", torch.zeros(1, 16, 4))
            def forward(self, x, at):
                self.k.index_copy_(1, at, x)
                return x + self.k.mean(1, keepdim=True)
        def generate(model, prompt, count):
            x = model(prompt, torch.arange(prompt.shape[1]))[:, -1:]
            kept = [x]
            for n in range(count):
                kept.append(model(kept[-1], torch.tensor([prompt.shape[1] + n])))
            return kept
        model = torch.compile(Cached(), backend="eager")
        outputs = generate(model, torch.ones(1, 5, 4), 4)
        """,
        adds=("RC204",),
    ),
    "a counter": Case(
        "RC213",
        "setting",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = 0  # so far
            def forward(self, x):
                self.calls += 1
                return x * self.calls
        net = torch.compile(Net(), backend="eager")
        outputs = [net(torch.ones(3)) for _ in range(5)]
        """,
        adds=("RC213",),
    ),
    "counters in Python math, set back and read elsewhere": Case(
        "RC213",
        "setting",
        """
        import json
        class Net(nn.Module):
            def __init__(self, start):
                super().__init__()
                self.lin = nn.Linear(2, 2)
                self.step = start
                self.first = self.step
                self.beta = 0.9
            def begin(self):
                self.step = self.first
            def forward(self, x):
                y = self.lin(x) * self.step
                self.step += 1
                return y * max(0.5, 1 - 0.01 * self.step) / (1 - self.beta**self.step)
        torch.manual_seed(0)
        net = Net(4)
        compiled = torch.compile(net, backend="eager")
        outputs = []
        for i in range(5):
            if i == 3:
                net.begin()
            y = compiled(torch.ones(2)) + compiled(torch.ones(2))
            y.sum().backward()
            outputs.append((y, json.dumps({"step": net.step, "first": net.first})))
        """,
        adds=("RC213",),
    ),
    "a counter that needs a number": Case(
        "RC213",
        "none",
        """
        import math
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.step = 0
            def forward(self, x):
                self.step += 1
                return x * math.exp(-0.1 * self.step)
        net = torch.compile(Net(), backend="eager")
        outputs = [net(torch.ones(2)) for _ in range(4)]
        """,
        adds=("RC213",),
    ),
    "a float that torch makes an input": Case(
        "RC213",
        "none",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.decay = 0.5
            def forward(self, x):
                self.decay = self.decay * 0.9
                return x.mean() * self.decay, x[0] - self.decay
        net = torch.compile(Net(), backend="eager")
        outputs = [net(torch.ones(2)) for _ in range(4)]
        """,
        adds=("RC213",),
    ),
    "counts in containers of the file": Case(
        "RC214",
        "setting",
        """
        STATE, AT = {"step": 0, "all": [3]}, 5
        def scaled(x):
            return x * STATE["step"]
        @torch.compile(backend="eager")
        def moved(x):
            return x + STATE["all"][0]
        @torch.compile(backend="eager")
        def grown(x):
            return x * AT
        f = torch.compile(scaled, backend="eager")
        outputs = []
        for _ in range(4):
            outputs.append(grown(moved(f(torch.ones(2)))))
            STATE["step"] += 1
            STATE["all"][0] += 1
            AT += 1
        """,
    ),
    "a counter that another method sets back": Case(
        "RC213",
        "setting",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.pos = 1
            def begin(self):
                self.pos = 2
            def forward(self, x):
                self.pos += 1
                return x * self.pos
        net = Net()
        step = torch.compile(net, backend="eager")
        outputs = []
        for i in range(5):
            if i == 3:
                net.begin()
            outputs.append(step(torch.ones(2)))
        """,
        adds=("RC213",),
    ),
    "a number of a global object": Case(
        "RC214",
        "setting",
        """
        class State:
            def __init__(self):
                self.n = 0
        STATE = State()
        @torch.compile(backend="eager")
        def f(x):
            STATE.n += 1
            return x * STATE.n
        outputs = [f(torch.ones(2)) for _ in range(4)]
        """,
    ),
    "a global number": Case(
        "RC214",
        "none",
        """
        SCALE = {"by": 2.0}
        @torch.compile(backend="eager")
        def f(x):
            return x * SCALE["by"]
        outputs = []
        for i in range(4):
            SCALE["by"] += 1
            outputs.append(f(torch.ones(4)))
        """,
        (
            ("def f(x)", "def f(x, by)"),
            ("return x * SCALE", "return x * by\n    SCALE"),
            ("f(torch.ones(4))", 'f(torch.ones(4), torch.tensor(SCALE["by"]))'),
        ),
    ),
    "a list that nothing reads": Case(
        "RC212",
        "none",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.seen = []
            def forward(self, x):
                y = x * 2
                self.seen.append(y)
                return y
        net = Net()
        step = torch.compile(net, backend="eager")
        outputs = [step(torch.ones(2)) for _ in range(4)]
        """,
        (("        self.seen.append(y)\n", ""),),
    ),
    "a length": Case(
        "RC212",
        "none",
        """
        @torch.compile(backend="eager")
        def f(xs):
            return sum(xs)
        outputs = []
        for n in (3, 4, 5, 6):
            xs = [torch.ones(2)] * n
            outputs.append(f(xs))
        """,
        (("f(xs))", "f(torch.stack(xs)))"), ("return sum(xs)", "return xs.sum(0)")),
        adds=("RC201",),  # once
    ),
    "a class that is created again": Case(
        "RC211",
        "none",
        """
        @torch.compile(backend="eager")
        def f(x, o):
            return x * o.k
        outputs = []
        for i in range(3):
            class Option:
                k = 2.0
            outputs.append(f(torch.ones(3), Option()))
        """,
        (
            (
                "for i in range(3):\n    class Option:\n        k = 2.0",
                "class Option:\n    k = 2.0\nfor i in range(3):",
            ),
        ),
    ),
    "a learning rate": Case(
        "RC218",
        "none",
        """
        p = nn.Parameter(torch.ones(2))
        p.grad = torch.ones(2)
        optimizer = torch.optim.SGD([p], lr=0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        @torch.compile(backend="eager")
        def step():
            optimizer.step()
        for _ in range(4):
            step()
            scheduler.step()
        outputs = [p.detach()]
        """,
        (("lr=0.5", "lr=torch.tensor(0.5)"),),
    ),
    "a mark of a size that cannot be dynamic": Case(
        "DS601",
        "edit",
        """
        @torch.compile(backend="eager")
        def f(x, w):
            return x + w
        w = torch.ones(6, 8)
        for n in (6, 6):
            x = torch.ones(n, 8)
            torch._dynamo.mark_dynamic(x, 0)
            outputs = f(x, w)
        """,
    ),
    "a range that does not fit": Case(
        "DS601",
        "none",
        """
        @torch.compile(backend="eager")
        def f(x):
            return x[4:].sum(0) if x.shape[0] > 4 else x.sum(0)
        for n in (8, 9):
            x = torch.ones(n, 8)
            torch._dynamo.mark_dynamic(x, 0, min=2, max=16)
            outputs = f(x)
        """,
        (("min=2", "min=5"),),
    ),
    "an unbacked size that the code decides by": Case(
        "DS602",
        "edit",
        """
        from torch._dynamo.decorators import mark_unbacked
        @torch.compile(backend="eager", fullgraph=True)
        def f(x):
            return x * 2 if x.shape[0] > 4 else x + 1
        outputs = []
        for n in (6, 7):
            x = torch.ones(n, 8)
            mark_unbacked(x, 0)
            try:
                outputs = f(x)
            except Exception:
                outputs = (x * 2)
        """,
        adds=("RC201",),
    ),
    "a hint that cannot hold": Case(
        "DS603",
        "edit",
        """
        @torch.compile(backend="eager")
        def f(x, w):
            return x + w
        w = torch.ones(6, 8)
        for n in (6, 6):
            x = torch.ones(n, 8)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            outputs = f(x, w)
        """,
    ),
}


class Program:
    """A script that leaves its outputs beside it."""

    def __init__(self, folder: Path, case: Case) -> None:
        folder.mkdir()
        self.path = folder / "program.py"
        self.case = case
        self.text = HEAD + textwrap.dedent(case.text) + TAIL

    def write(self) -> str:
        self.path.write_text(self.text)
        return str(self.path)

    def findings(self, observation: Observation) -> tuple[list[Finding], str]:
        blame.forget()
        saved = Path(f"{self.path}.out")
        return rules.check(observation), saved.read_text() if saved.exists() else ""

    def follow(self, findings: Sequence[Finding]) -> Iterator[str]:
        """Applies the remedy of the finding; yields what is wrong with it."""
        own = [f for f in findings if f.code == self.case.code and f.remedy]
        if {f.remedy.kind for f in own if f.remedy} != {self.case.kind}:
            yield f"{self.case.code}: {[(f.code, f.message, f.fix) for f in findings]}"
            return
        finding, *others = own
        if any(each.remedy != finding.remedy for each in others):
            yield f"{self.case.code}: one remedy, of all, was expected"
        if len(finding.message) > 120 or len(finding.fix) > 160:
            yield f"too long: {finding.message} {finding.fix}"
        remedy = finding.remedy
        assert remedy is not None
        self.text = applied(self.text, remedy.replacements)
        for setting in () if remedy.replacements else remedy.settings:
            if setting.name.startswith("compile."):
                plain = re.sub(r", dynamic=\w+", "", self.text)
                self.text = plain.replace('"eager"', f'"eager", {setting.code}')
            else:
                self.text = self.text.replace(HEAD, f"{HEAD}{setting.code}\n")
        for old, new in self.case.edit:
            assert self.text.count(old) == 1, old
            self.text = self.text.replace(old, new)


def test_a_remedy_removes_its_finding_and_changes_no_output(
    tmp_path: Path, observe_all: Any
) -> None:
    programs = {
        name: Program(tmp_path / str(number), case)
        for number, (name, case) in enumerate(CASES.items())
    }

    def check_all() -> dict[str, tuple[list[Finding], str]]:
        observed = observe_all([(each.write(), {}) for each in programs.values()])
        return {
            name: programs[name].findings(observation)
            for name, observation in zip(programs, observed, strict=True)
        }

    before = check_all()
    wrong = [
        problem
        for name, (findings, _) in before.items()
        for problem in programs[name].follow(findings)
    ]
    for name, (findings, outputs) in check_all().items():
        case = CASES[name]
        known = {f.code for f in before[name][0]} - {case.code} | {*case.adds}
        added = [f"{f.code} {f.message}" for f in findings if f.code not in known]
        if added or not outputs or outputs != before[name][1]:
            wrong.append(f"{name}: {added} {before[name][1]} {outputs}")
    assert not wrong, "\n".join(wrong)


OF_A_TARGET = """\
import random
import torch


def inner(tokens):
    torch._dynamo.graph_break()
    return tokens * 2


def outer(ids):
    return inner(ids).sum()


class Noted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def forward(self, x):
        self.seen.add(len(self.seen))
        return x + 1


def crop(x):
    left = random.randint(0, 4)
    return x[left : left + 4]


def fitted(x):
    return torch.linalg.lstsq(x, x).solution


def sizes():
    return outer, [(torch.ones(1, n),) for n in (8, 6, 10)]


def objects():
    return Noted(), [(torch.ones(2),)] * 3


def slices():
    return crop, [(torch.ones(9),)] * 3


def solved():
    return fitted, [(torch.rand(4, 4),)] * 3
"""


def test_remedies_of_a_target_can_be_followed(tmp_path: Path, observe_all: Any) -> None:
    path = tmp_path / "program.py"
    path.write_text(OF_A_TARGET)
    names = ("sizes", "objects", "slices", "solved")
    seen = observe_all([(f"{path}:{name}", {}) for name in names])
    found = dict(zip(names, map(rules.check, seen), strict=True))
    marks = {mark.argument for f in found["sizes"] for mark in f.remedy.marks}
    assert marks == {"ids"}  # a parameter of the target, not of what it calls
    objects = [f for f in found["objects"] if f.kind == "recompile"]
    assert objects and not any("each value" in f.remedy.text for f in objects)
    [solve] = [f for f in found["solved"] if f.code == "GB103"]
    assert solve.remedy.kind == "none" and "torch.where" not in solve.remedy.text
