"""Programs cut out of their files: what is kept, what is merged, what is refused."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from torchproof.packs.repro.candidate import Candidate
from torchproof.packs.repro.programs.file_merger import Unsuitable
from torchproof.packs.repro.programs.whole_program import program_candidates
from torchproof.targets.target import parse


def extracted(target: str, arguments: Sequence[str] = ()) -> Candidate:
    return next(program_candidates(parse(target, arguments)))


def written(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


def run(source: str) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "candidate"}
    exec(compile(source, "candidate", "exec"), names)
    return names


def test_what_the_factory_does_not_reach_is_gone(tmp_path: Path) -> None:
    written(
        tmp_path,
        model="""
        import json
        import math

        LIMIT = 3
        OTHER = 4

        def unused(): return json.dumps(OTHER)
        def odd(): return OTHER is 4  # Python warns of it

        class Net:
            def __call__(self, x: int) -> int:
                "Says what it does."
                return self.used(x)
            def used(self, x): return x + LIMIT
            def unused(self): return math.pi

        def make():
            return Net(), [(1,)]

        if __name__ == "__main__":
            print(make())
        """,
    )
    source = extracted(f"{tmp_path}/model.py:make").source
    for word in ("json", "math", "OTHER", "unused", "Says", "__main__", "int"):
        assert word not in source
    fn, calls = run(source)["make"]()  # type: ignore[operator]
    assert fn(*calls[0]) == 4


def test_local_files_are_merged_under_distinct_names(tmp_path: Path) -> None:
    written(
        tmp_path,
        parts__a="LIMIT = 10\ndef scaled(x): return x * LIMIT\nclass Net: pass\n",
        parts__b="from .a import scaled as grown\nfrom . import a\n"
        "def twice(x): return grown(x) + a.LIMIT\n",
        parts____init__="",
        main="""
        import parts.b
        from parts import a

        LIMIT = 1

        class Net(a.Net):
            def __call__(self, x):
                from parts.b import twice
                return twice(x) + parts.b.twice(x) + LIMIT

        def build(batch=None):
            return Net(), [(batch or 2,)]
        """,
    )
    candidate = extracted(f"{tmp_path}/main.py:build")
    fn, calls = run(candidate.source)["make"]()  # type: ignore[operator]
    assert fn(*calls[0]) == 61
    assert "parts" not in candidate.source.replace("a_Net", "")


def test_modules_under_other_names_and_registries_are_followed(tmp_path: Path) -> None:
    written(
        tmp_path,
        parts__core="from .extra import LIMIT\ndef grown(x): return x + LIMIT\n",
        parts__extra="LIMIT = 2\n",
        main="""
        import parts
        from parts import grown, more

        KNOWN = {}

        def known(fn):
            KNOWN[fn.__name__] = fn
            return fn

        @known
        def step(x):
            LIMIT = 10
            return grown(x) + more.LIMIT + parts.more.LIMIT + LIMIT

        def make():
            return (lambda x: KNOWN["step"](x)), [(1,)]
        """,
    )
    package = "from .core import *\nfrom . import extra as more\n"
    (tmp_path / "parts" / "__init__.py").write_text(package, encoding="utf-8")
    source = extracted(f"{tmp_path}/main.py:make").source
    fn, calls = run(source)["make"]()  # type: ignore[operator]
    assert fn(*calls[0]) == 17


def test_a_workload_is_built_with_its_arguments() -> None:
    arguments = {"size": "tiny", "device": "cpu", "train": False}
    candidate = next(program_candidates(parse("workload:gpt-original"), arguments))
    assert "return build(size='tiny', device='cpu', train=False)" in candidate.source
    assert "torchproof" not in candidate.source


def test_before_call_is_kept(tmp_path: Path) -> None:
    written(
        tmp_path,
        hooked="STATE = []\ndef make(): return print, [()]\n"
        "def before_call(fn, index): STATE.append(index)\n",
    )
    names = run(extracted(f"{tmp_path}/hooked.py:make").source)
    names["before_call"](None, 3)  # type: ignore[operator]
    assert names["STATE"] == [3]


def test_a_package_is_named_if_it_is_needed_and_cut_otherwise(tmp_path: Path) -> None:
    written(
        tmp_path,
        needy="import rich\ndef make(): return rich.print, [()]\n",
        frugal="import rich\ndef show(): rich.print()\nrich.print('hello')\n"
        "def make(): return len, [([],)]\n",
    )
    with pytest.raises(Unsuitable, match="needs rich"):
        extracted(f"{tmp_path}/needy.py:make")
    assert "rich" not in extracted(f"{tmp_path}/frugal.py:make").source


def test_a_script_becomes_a_function_that_runs_it(tmp_path: Path) -> None:
    written(
        tmp_path,
        script="""
        import sys
        seen: list = []
        count: int
        def note(x): seen.append(x)
        if __name__ == "__main__":
            count = 2
            for number in range(count):
                note(number)
            note(sys.argv[1])
        """,
    )
    source = extracted(f"{tmp_path}/script.py", ["--fast"]).source
    assert "pass" not in source and "int" not in source
    names = run(source)
    fn, calls = names["make"]()  # type: ignore[operator]
    assert calls == [()]
    fn()
    assert names["seen"] == [0, 1, "--fast"]


def test_file_as_written_is_not_changed(tmp_path: Path) -> None:
    text = "def build():  # why\n    return len, [([],)]\n"
    (tmp_path / "whole.py").write_text(text, encoding="utf-8")
    target = parse(f"{tmp_path}/whole.py:build")
    source = next(program_candidates(target, as_written=True)).source
    assert source.startswith(text)
    assert run(source)["make"]() == (len, [([],)])  # type: ignore[operator]


OPERATOR = """
import torch
from typing import NamedTuple

LIBRARY = torch.library.Library("acme", "FRAGMENT")
LIBRARY.define("grown(Tensor x) -> Tensor")

@torch.library.impl(LIBRARY, "grown", "CompositeExplicitAutograd")
def grown(x):
    return x + 1

@torch.library.custom_op("acme::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    "What a decorator may read."
    return x * by

@scaled.register_fake
def _(x, by=2.0):
    return torch.empty_like(x)

def scaled_back(context, gradient):
    return gradient * 2.0, None

scaled.register_autograd(scaled_back)

class Bounds(NamedTuple):
    low: float = 0.5

def plain(x: torch.Tensor) -> torch.Tensor:
    "Nobody reads this."
    count: int = 1
    return torch.ops.acme.scaled(torch.ops.acme.grown(x)) * Bounds().low * count

def make():
    return plain, [(torch.ones(2),)]
"""


def test_what_a_decorator_or_a_base_class_reads_is_kept(tmp_path: Path) -> None:
    (tmp_path / "operator.py").write_text(OPERATOR, encoding="utf-8")
    source = extracted(f"{tmp_path}/operator.py:make").source
    assert "by: float=2.0) -> torch.Tensor" in source and "may read" in source
    assert "low: float" in source and "register_fake" in source
    assert "register_autograd(scaled_back)" in source
    assert "def plain(x):" in source and "Nobody" not in source
    fn, calls = run(source)["make"]()  # type: ignore[operator]
    assert fn(*calls[0]).tolist() == [2.0, 2.0]


def test_if_the_extract_does_not_do_all_of_the_program_is_there(tmp_path: Path) -> None:
    written(
        tmp_path,
        hidden="""
        FOUND = []

        class Base:
            def __init_subclass__(cls): FOUND.append(cls)

        class Part(Base):
            def __call__(self, x): return x + 1

        def make():
            return FOUND[0](), [(1,)]
        """,
    )
    extract, whole = program_candidates(parse(f"{tmp_path}/hidden.py:make"))
    assert "Part" not in extract.source
    fn, calls = run(whole.source)["make"]()  # type: ignore[operator]
    assert fn(*calls[0]) == 2
