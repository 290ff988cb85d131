"""A recompile names the argument as the caller writes it, and its advice cures it."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from installed_library import install, script

from torchproof.checking import rules
from torchproof.records import Call
from torchproof.records.run import Finding, Frame

LIBRARY = """\
import logging
import torch

log = logging.getLogger("fakelib")


def double(x, y=None):
    return x * 2 if y is None else x * 2 + y


class Model(torch.nn.Module):
    def forward(self, *args, **kwargs):
        return double(*args, **kwargs)


class Noisy(torch.nn.Module):
    def forward(self, x):
        h = x.sin()
        log.warning("noisy")  # break
        return h.cos() + x


class Dropping(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x, training=self.training)


class Picking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = [torch.float64, torch.float32]

    @torch.compiler.disable
    def pick(self):
        self.kinds.reverse()
        return self.kinds[0]

    def forward(self, x, dtype):
        kind = self.pick()
        log.warning("picked")
        return x.to(kind)


def train(model, batches):
    for inputs in batches:
        model(**inputs)


def fit(model, batches):
    train(torch.compile(model, backend="eager"), batches)
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return install(tmp_path, LIBRARY)


def recompiles(observe: Any, path: Path) -> list[Finding]:
    return [f for f in rules.check(observe(str(path))) if f.kind == "recompile"]


# What is called, and each argument whose size changes, as the user would name it.
CALLS = {
    "c(x)": ["x"],
    "c(x=x)": ["x"],
    'c(batch["x"])': ['batch["x"]'],
    "c(**batch)": ['batch["x"]', 'batch["y"]'],
    "c(*pair)": ["pair[0]", "pair[1]"],
    "c(x, *rest)": ["x", "rest[0]"],
    "c(data.x, y=data.y)": ["data.x", "data.y"],
    "c(\n    x,\n    y=y,\n)": ["x", "y"],
    "c((z := double(n)))": ["z"],
    "print(double(c(x).sum().item()))": ["x"],
    "data.model(x)": ["x"],
    "c(**{'x': x})": ["x"],
    "c(**dict(x=x))": ["x"],
    "[c(x) for _ in range(1)]": ["x"],
}
HEAD = """\
import types
def double(n):
    return torch.zeros(2 * n) if isinstance(n, int) else n
def step(c, n):
    x, y = torch.zeros(2 * n), torch.zeros(2 * n)
    batch, pair, rest = {"x": x, "y": y}, (x, y), [y]
    data = types.SimpleNamespace(x=x, y=y, model=c)
"""


def program(call: str, name: str) -> str:
    own = HEAD.replace("def step", f"def {name}") + textwrap.indent(call, "    ") + "\n"
    return own + (
        f"c = torch.compile(fakelib.Model(), backend='eager')\n"
        f"{name}(c, 4)\n{name}(c, 5)\n{name}(c, 6)\ntorch._dynamo.reset()\n"
    )


def applied(text: str, finding: Finding) -> str:
    """The source with the statements of the advice before the statement at its line."""
    call = r"torch\._dynamo\.[\w.]*mark_\w+\(.+?, \d+(?:, \w+=\"\w+\")?\)"
    marks = "; ".join(re.findall(call, finding.fix))
    assert marks, finding.fix
    lines = text.splitlines()
    [statement] = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr | ast.Assign)
        and node.lineno <= (finding.line or 0) <= (node.end_lineno or 0)
    ]
    lines.insert(statement.lineno - 1, " " * statement.col_offset + marks)
    return "\n".join(lines) + "\n"


def test_the_words_are_the_callers_and_the_advice_cures(
    library: Path, observe: Any
) -> None:
    body = "".join(program(call, f"f{i}") for i, call in enumerate(CALLS))
    path = script(library, body)
    before = recompiles(observe, path)
    assert len(before) == len(CALLS)
    text = path.read_text()
    for finding in sorted(before, key=lambda f: -(f.line or 0)):
        number = int((finding.function or "f0").split("f")[1].split(".")[0])
        words = list(CALLS.values())[number]
        assert finding.file == str(path) and finding.owner == "user"
        assert f"`{words[0]}`" in finding.message
        assert "Model.forward" in finding.message
        assert finding.remedy is not None
        marked = [mark.argument for mark in finding.remedy.marks]
        if words == ["z"]:  # what a walrus binds has no name before the call
            assert finding.remedy.kind == "setting"
            continue
        assert marked == words
        text = applied(text, finding)
    path.write_text(text)
    assert [f.function for f in recompiles(observe, path)] == ["f8"]


SCRIPTS = {
    "no name": """\
        c = torch.compile(fakelib.Model(), backend="eager")
        for n in (4, 5, 6):
            c(torch.zeros(n))
        """,
    "two calls": """\
        c = torch.compile(fakelib.Model(), backend="eager")
        train, valid = torch.zeros(4), torch.zeros(5)
        c(train)
        c(valid)
        """,
    "equal at first": """\
        c = torch.compile(fakelib.Model(), backend="eager")
        for shape in ((4, 4), (4, 5), (6, 7)):
            x = torch.zeros(shape)
            c(x)
        """,
    "behind a break": """\
        c = torch.compile(fakelib.Noisy(), backend="eager")
        for n in (4, 5, 6):
            batch = {"x": torch.zeros(n)}
            c(**batch)
        """,
    "passed by a library": """\
        c = torch.compile(fakelib.Model(), backend="eager")
        fakelib.train(c, [{"x": torch.zeros(n)} for n in (4, 5, 6)])
        """,
    "compiled by a library": """\
        fakelib.fit(fakelib.Model(), [{"x": torch.zeros(n)} for n in (4, 5, 6)])
        """,
    "a mode": """\
        net = torch.compile(fakelib.Dropping(), backend="eager")
        net.train()
        net(torch.zeros(3))
        net.eval()
        net(torch.zeros(3))
        """,
    "nothing changes": """\
        c = torch.compile(fakelib.Model(), backend="eager")
        for _ in range(3):
            batch = {"x": torch.zeros(4)}
            c(**batch)
        """,
}
IGNORE = "torch._dynamo.config.ignore_logging_functions.add(fakelib.log.warning)\n"


def test_advice_for_each_kind_of_call_cures(library: Path, observe_all: Any) -> None:
    paths = {
        name: script(library, body, name.replace(" ", "_"))
        for name, body in SCRIPTS.items()
    }

    def findings() -> dict[str, list[Finding]]:
        observed = observe_all([(str(path), {}) for path in paths.values()])
        found = map(rules.check, observed)
        return {
            name: [f for f in each if f.kind == "recompile" or name == "behind a break"]
            for name, each in zip(paths, found, strict=True)
        }

    def edit(name: str, old: str, new: str) -> None:
        text = paths[name].read_text()
        assert text.count(old) == 1
        paths[name].write_text(text.replace(old, new))

    def follow(name: str, finding: Finding) -> None:
        paths[name].write_text(applied(paths[name].read_text(), finding))

    found = findings()
    # What has no name cannot be marked.
    [finding] = found["no name"]
    edit("no name", '"eager"', f'"eager", {finding.remedy.settings[0].code}')
    # Each line that calls it marks its own.
    [finding] = found["two calls"]
    for name in ("train", "valid"):
        mark = f"torch._dynamo.maybe_mark_dynamic({name}, 0)"
        edit("two calls", f"c({name})", f"{mark}; c({name})")
    # Sizes that are equal at first are marked apart.
    [finding] = found["equal at first"]
    follow("equal at first", finding)
    # Two edits for three recompiles: the break, and the marks.
    at_call = [f for f in found["behind a break"] if f.owner == "user"]
    behind = [f for f in found["behind a break"] if f.owner == "library"]
    assert [f.kind for f in at_call] == ["recompile"] and len(behind) == 2
    [after] = [f for f in behind if f.kind == "recompile"]
    assert after.remedy is not None and after.remedy.kind == "setting"
    follow("behind a break", at_call[0])
    edit("behind a break", "c = torch", f"{IGNORE}c = torch")
    # An argument that a library passes is named as its parameter.
    [finding] = found["passed by a library"]
    assert finding.line == 6 and "`x`" in finding.message
    edit("passed by a library", 'backend="eager"', 'backend="eager", dynamic=True')
    [finding] = found["compiled by a library"]
    assert "`x`" in finding.message and finding.remedy.kind == "none"
    [setting] = re.findall(r"torch\.compiler\.config\.\w+ = \".+?\"", finding.fix)
    edit("compiled by a library", "fakelib.fit", f"{setting}\nfakelib.fit")
    # A module is named as it is called.
    [finding] = found.pop("a mode")
    assert finding.code == "RC217" and finding.owner == "library"
    assert "`net.training`" in finding.message and "self" not in finding.fix
    del paths["a mode"]
    assert found["nothing changes"] == []

    assert findings() == {name: [] for name in paths}


def test_a_dtype_is_not_taken_for_the_argument_that_it_equals(
    library: Path, observe: Any
) -> None:
    body = """\
        c = torch.compile(fakelib.Picking(), backend="eager")
        for _ in range(3):
            c(torch.zeros(3), torch.float64)
        """
    found = recompiles(observe, script(library, body))
    assert any("`kind`" in f.message for f in found)
    assert not any("`torch.float64`" in f.message for f in found)


def test_a_trace_reads_the_call_from_the_source(tmp_path: Path) -> None:
    """A trace records the line of the call, and neither its columns nor its sizes."""
    header = "def forward(self, x, *args, scale=1, **kwargs):\n    return x\n"
    library = install(tmp_path, header)
    caller = tmp_path / "train.py"
    caller.write_text("out = c(a.x, rest, **batch)\nlog(c(1))\n")
    function = Frame(str(library), 1, "forward")
    call = Call.read_from_source(Frame(str(caller), 1, "<module>"), function)
    assert call is not None and call.by_user
    words = {
        "x": "a.x",
        "args[0]": "rest",
        "scale": 'batch["scale"]',
        "kwargs['mask']": 'batch["mask"]',
        "kwargs": "batch",
        "hidden": "hidden",
    }
    assert {source: call.words(source) for source in words} == words
    assert Call.read_from_source(Frame(str(caller), 2, "<module>"), function) is None


def test_a_file_that_is_gone_gives_the_name_of_the_parameter() -> None:
    sources = [["x", [], ["args", 0]], ["kwargs", ["y"], ["kwargs", "y"]]]
    site = ["/nowhere.py", 1, "f", [1, 1, 0, len("c(a, y=b)")]]
    record = {"entry": 0, "positional": 1, "sources": sources, "sizes": []}
    call = Call.read({**record, "site": site})
    assert call is not None
    words = ("x", "kwargs['y']", "kwargs['y'].shape", "other")
    assert [call.words(each) for each in words] == ["x", "y", "y.shape", "other"]
