"""The factories of a file, found by reading it, and the verbs that name them."""

from __future__ import annotations

import json
from pathlib import Path

import forked_commands
import pytest

from torchproof import api, targets
from torchproof.measure import LoadOptions
from torchproof.records import UserError

FACTORIES = {
    "a literal": "def make():\n    return model, [(x,)]\n",
    "defaults": "def make(batch=2, *, sequence=8):\n    return model, [(x,)] * batch\n",
    "variables": "def make():\n    calls = []\n    return fn, calls\n",
    "a variable for both": "def make():\n    both = (f, [x])\n    return both\n",
    "branches": "def make():\n    if A:\n        return f, [()]\n    return g, []\n",
    "a helper": (
        "def _built(size):\n    return f, [size]\ndef make():\n    return _built(2)\n"
    ),
    "an annotation": "def make() -> tuple[M, list[T]]:\n    return library.built()\n",
    "calls of a loader": "def make():\n    return f, loader()\n",
    "a comprehension": "def make():\n    return f, [(i,) for i in range(3)]\n",
}
NOT_FACTORIES = {
    "required": "def make(batch):\n    return f, [(x,)]\n",
    "required keyword": "def make(*, batch):\n    return f, [(x,)]\n",
    "numbers": "def make():\n    return 1, 2\n",
    "an error": "def make():\n    loss = 0.5\n    return 'ok', loss\n",
    "three": "def make():\n    return f, [()], 1\n",
    "inner": "def make():\n    def g():\n        return f, [()]\n    return g\n",
    "a method": "class A:\n    def make():\n        return f, [()]\n",
    "recursive": "def make():\n    return make()\n",
    "private": "def _make():\n    return f, [()]\n",
    "sometimes": "def make():\n    if A:\n        return f, [()]\n    return model\n",
    "a syntax error": "def make(:\n    return f, [()]\n",
}


@pytest.mark.parametrize("what", [*FACTORIES, *NOT_FACTORIES])
def test_factories_are_found_by_reading(what: str, tmp_path: Path) -> None:
    (file := tmp_path / "model.py").write_text({**FACTORIES, **NOT_FACTORIES}[what])
    assert targets.factories_in(str(file)) == (["make"] if what in FACTORIES else [])


def test_certain_factories_come_without_those_that_may_be_one(tmp_path: Path) -> None:
    text = "def evaluate():\n    return loss(), accuracy()\n"
    (file := tmp_path / "model.py").write_text(text)
    assert targets.factories_in(str(file)) == ["evaluate"]
    more = "def make():\n    return f, [()]\ndef other():\n    return g, [()]\n"
    (file := tmp_path / "more.py").write_text(text + more)
    assert targets.factories_in(str(file)) == ["make", "other"]


TWO = """\
import torch

def make():
    return torch.nn.Linear(4, 4), [(torch.ones(2, 4),)]

def make_other(batch=2):
    calls = [(torch.ones(batch, 4),)]
    return torch.nn.ReLU(), calls
"""


def test_verbs_that_need_a_factory_name_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text(TWO)
    verbs = {
        "tune": lambda: api.tune("m.py"),
        "loadtest": lambda: api.loadtest("m.py", load_options=LoadOptions(rate=1.0)),
        "pack": lambda: api.pack("m.py", purpose="deploy"),
    }
    for verb, call in verbs.items():
        with pytest.raises(UserError) as raised:
            call()
        assert f"torchproof {verb} m.py:make" in str(raised.value)
        assert "m.py:make_other" in str(raised.value)
    fixing = api.fix("m.py").fixing  # it runs as a script
    assert fixing is not None
    [left] = fixing.remaining
    assert "m.py:make" in left.fix and "m.py:make_other" in left.fix


NONE = "import torch\ntorch.ones(2)\n"


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [(TWO, "NC806", True), (NONE, "NC806", False)],
)
def test_file_that_only_defines_factories_names_them(
    text: str, code: str, named: bool, tmp_path: Path
) -> None:
    (tmp_path / "m.py").write_text(text)
    words = ("check", "m.py", "--effort", "quick", "--format", "json")
    done = forked_commands.torchproof(*words, cwd=tmp_path)
    [found] = json.loads(done.stdout)["findings"]
    assert found["code"] == code and "--as-written" not in found["fix"]
    for name in ("m.py:make", "m.py:make_other"):
        assert (name in found["fix"]) == named
