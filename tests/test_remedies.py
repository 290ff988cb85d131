"""A remedy that is data, applied as it is, removes its finding and adds none."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from construct_programs import CONSTRUCTS

from torchproof.checking import rules
from torchproof.records import Finding, Remedy, blame

HEAD = "import torch, warnings\nfrom torch._dynamo.decorators import mark_unbacked\n"
# One process runs all of them: a program takes back its settings.
TAIL = """
open(__file__ + ".out", "w").write(repr(out))
config = torch._dynamo.config
config.capture_scalar_outputs = config.capture_dynamic_output_shape_ops = False
config.trace_autograd_ops = False
config.reorderable_logging_functions.clear()
"""
# Each with the code of its finding and the kind of the remedy.
PROGRAMS = {
    "a number that tensors use": (
        "GB101",
        "setting",
        """
        @torch.compile(backend="eager")
        def f(x):
            n = (x > 0).sum().item()
            return x.sum() / n
        for i in range(2):
            out = f(torch.ones(4))
        """,
    ),
    "a number that decides": (
        "GB101",
        "none",
        """
        @torch.compile(backend="eager")
        def f(x):
            n = (x > 0).sum().item()
            return x * 2 if n > 1 else x
        for i in range(2):
            out = f(torch.ones(4))
        """,
    ),
    "numbers that no setting captures": (
        "GB101",
        "none",
        """
        torch._dynamo.config.capture_scalar_outputs = True
        @torch.compile(backend="eager")
        def f(x):
            return sum(x * value for value in x.tolist())
        for i in range(2):
            out = f(torch.ones(4))
        """,
    ),
    "a size that depends on the data": (
        "GB103",
        "setting",
        """
        @torch.compile(backend="eager")
        def f(x):
            return x[x > 1].sum()
        for i in range(2):
            out = f(torch.arange(4.0))
        """,
    ),
    "a size that decides": (
        "GB103",
        "none",
        """
        @torch.compile(backend="eager")
        def f(x):
            y = x[x > 1]
            return y * 2 if y.numel() else x
        for i in range(2):
            out = f(torch.arange(4.0))
        """,
    ),
    "output": (
        "GB104",
        "setting",
        """
        @torch.compile(backend="eager")
        def f(x):
            y = x.sin()
            print("mean", y.mean())
            return y.cos()
        for i in range(2):
            out = f(torch.ones(4))
        """,
    ),
    "a warning": (
        "GB104",
        "setting",
        """
        @torch.compile(backend="eager")
        def f(x):
            y = x.sin()
            warnings.warn("slow")
            return y.cos()
        warnings.simplefilter("ignore")
        for i in range(2):
            out = f(torch.ones(4))
        """,
    ),
    "a break under fullgraph": (
        "CE704",
        "setting",
        """
        @torch.compile(backend="eager", fullgraph=True)
        def f(x):
            y = x + 1
            print("mean", y.mean())
            return y
        try:
            out = f(torch.ones(4))
        except torch._dynamo.exc.Unsupported:
            out = torch.ones(4) + 1
        """,
    ),
    "gradients": (
        "GB110",
        "setting",
        """
        @torch.compile(backend="eager")
        def f(x, w):
            return torch.autograd.grad((x * w).sum(), w)[0]
        w = torch.ones(4, requires_grad=True)
        for i in range(2):
            out = f(torch.ones(4), w)
        """,
    ),
    "a mark of a size that the code decides by": (
        "GB102",
        "edit",
        """
        @torch.compile(backend="eager")
        def f(x):
            if x.shape[0] > 4:
                return x * 2
            return x + 1
        for n in (6, 7, 8):
            x = torch.ones(n, 8)
            mark_unbacked(x, 0)
            out = f(x)
        """,
    ),
    **CONSTRUCTS,
}


def applied(text: str, remedy: Remedy) -> str:
    lines = text.splitlines(True)
    for change in sorted(remedy.replacements, key=lambda each: -each.line):
        at = change.line - 1
        assert lines[at : at + len(change.old)] == list(change.old)
        lines[at : at + len(change.old)] = change.new
    lines[2:2] = [f"{setting.code}\n" for setting in remedy.settings]
    return "".join(lines)


def test_a_remedy_applied_removes_its_finding(tmp_path: Path, observe_all: Any) -> None:
    texts = [HEAD + textwrap.dedent(text) + TAIL for _, _, text in PROGRAMS.values()]
    paths = [tmp_path / f"program_{number}.py" for number in range(len(texts))]

    def check(texts: list[str]) -> tuple[list[list[Finding]], list[str]]:
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        blame.forget()
        found = [*map(rules.check, observe_all([(str(path), {}) for path in paths]))]
        return found, [Path(f"{path}.out").read_text() for path in paths]

    before, outputs = check(texts)
    remedies = []
    for name, (code, kind, _), found in zip(
        PROGRAMS, PROGRAMS.values(), before, strict=True
    ):
        finding = next(f for f in found if f.code == code)
        assert finding.remedy is not None and finding.remedy.kind == kind, name
        remedies.append(finding.remedy)
    after, again = check([*map(applied, texts, remedies)])
    assert again == outputs
    for name, found, left in zip(PROGRAMS, before, after, strict=True):
        code, kind, _ = PROGRAMS[name]
        codes = {each.code for each in left}
        assert (code in codes) == (kind == "none"), name
        assert codes <= {each.code for each in found} | {"RC201"}, name
