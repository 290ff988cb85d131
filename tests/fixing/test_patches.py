"""`fix --patch DIR` and `torchproof.apply_patches`: functions of libraries replaced."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fix_runs import edit, run_of, setting

import torchproof
from torchproof.fixing.delivery import deliver
from torchproof.records import Fix, Mark, Setting, UserError
from torchproof.runtime import patches

LIBRARY = '''
from __future__ import annotations

import functools

SCALE = 10


def plain(x, y=SCALE):
    """Adds."""
    return x + y  # the sum


def noisy(function):
    def call(*args, **kwargs):
        return ("noisy", function(*args, **kwargs))

    return call


@functools.lru_cache(maxsize=None)
def cached(x: Missing) -> int:
    return x + SCALE


@noisy
def decorated(x):
    return x + SCALE


class Base:
    def forward(self, x):
        return x


class Net(Base):
    size = 3

    def forward(self, x):
        return super().forward(x) + self.__hidden()

    def __hidden(self):
        return SCALE

    def plain(self, x, n=size):
        return x * n

    @staticmethod
    def static(x):
        return x + SCALE

    @classmethod
    def build(cls, x):
        return cls.__name__, x + SCALE

    @property
    def wide(self):
        return self.size + SCALE

    class Inner:
        def run(self):
            return SCALE


if SCALE:
    def conditional(x):
        return x + SCALE
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package; its modules are forgotten afterwards."""
    folder = tmp_path / "site-packages" / "fakelib"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    file = folder / "model.py"
    file.write_text(LIBRARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setattr(patches, "_FINDER", patches._Finder())
    known, finders = set(sys.modules), list(sys.meta_path)
    yield file
    sys.meta_path[:] = finders
    for name in set(sys.modules) - known:
        if name.startswith(("fakelib", "user")):
            del sys.modules[name]


def patched(file: Path, change: Callable[[str], str]) -> Path:
    """A patch folder for a change of the library."""
    folder = Path("patches")
    run = deliver(run_of(edit(file, change(file.read_text()))), patch=folder)
    [fix] = run.fixes
    assert fix.status == "applied", (run.error, fix.why)
    return folder


def times_100(name: str) -> Callable[[str], str]:
    """Replaces SCALE in one function by SCALE * 10."""

    def change(text: str) -> str:
        head, middle, tail = text.partition(f"def {name}(")
        body, newline, rest = tail.partition("SCALE\n")
        assert newline
        return f"{head}{middle}{body}SCALE * 10\n{rest}"

    return change


def load():
    return importlib.import_module("fakelib.model")


CASES = {
    "cached": lambda m: (m.cached(1), 101),
    "decorated": lambda m: (m.decorated(1), ("noisy", 101)),
    "__hidden": lambda m: (m.Net().forward(1), 101),
    "static": lambda m: ((m.Net.static(1), m.Net().static(1)), (101, 101)),
    "build": lambda m: (m.Net.build(1), ("Net", 101)),
    "wide": lambda m: (m.Net().wide, 103),
    "run": lambda m: (m.Net.Inner().run(), 100),
    "conditional": lambda m: (m.conditional(1), 101),
}


def every(text: str) -> str:
    for name in CASES:
        text = times_100(name)(text)
    return text


@pytest.mark.parametrize("imported", ["before", "after"])
def test_each_kind_of_function_is_replaced(library: Path, imported: str) -> None:
    folder = patched(library, every)
    if imported == "before":
        load()
    report = torchproof.apply_patches(folder)
    for name, case in CASES.items():
        got, expected = case(load())
        assert got == expected, name
    assert len(report.applied) == len(CASES)
    assert not report.left_alone and not report.waiting


def test_references_taken_before_are_patched_and_have_the_source_of_the_patch(
    library: Path,
) -> None:
    folder = patched(library, every)
    module = load()
    early, method = module.decorated, module.Net().forward
    torchproof.apply_patches(folder)
    assert early(1) == ("noisy", 101) and method(1) == 101
    assert "SCALE * 10" in inspect.getsource(module.Net.static)


def test_a_method_that_begins_to_use_super(library: Path) -> None:
    def change(text: str) -> str:
        return text.replace("return x * n", "return super().forward(x) * n * 2")

    folder = patched(library, change)
    module = load()
    torchproof.apply_patches(folder)
    assert module.Net().plain(2) == 12


def test_defaults_and_decorators_are_evaluated_again_if_they_change(
    library: Path,
) -> None:
    def change(text: str) -> str:
        text = text.replace("def plain(x, y=SCALE)", "def plain(x, y=SCALE * 2)")
        return text.replace("@noisy\ndef decorated", "def decorated")

    folder = patched(library, change)
    module = load()
    user = type(sys)("user")
    user.f = module.plain
    sys.modules["user"] = user
    torchproof.apply_patches(folder)
    assert module.plain(1) == 21 and user.f(1) == 21
    assert module.decorated(1) == 11
    assert module.plain.__doc__ == "Adds."


def test_imports_and_helpers_that_an_edit_adds(library: Path) -> None:
    def change(text: str) -> str:
        text = text.replace("import functools\n", "import functools\nimport math\n")
        text = text.replace("return x + y  # the sum", "return _root(x + y)")
        return text + "\n\ndef _root(x):\n    return math.isqrt(x)\n"

    folder = patched(library, change)
    torchproof.apply_patches(folder)
    assert load().plain(6) == 4


def test_other_source_is_left_alone_with_one_line(
    library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(text: str) -> str:
        return times_100("static")(times_100("cached")(text))

    folder = patched(library, change)
    library.write_text(LIBRARY.replace("def static(x):", "def static(x, y=0):"))
    with caplog.at_level(logging.WARNING, "torchproof"):
        report = torchproof.apply_patches(folder)
        module = load()
    assert (module.cached(1), module.Net.static(1)) == (101, 11)
    [line] = [r.getMessage() for r in caplog.records if r.name == "torchproof"]
    assert "fakelib.model.Net.static is not patched: its installed source" in line
    assert list(report.left_alone) == ["fakelib.model.Net.static"]


def test_applying_twice_changes_nothing(library: Path) -> None:
    folder = patched(library, times_100("cached"))
    report = torchproof.apply_patches(folder)
    assert str(report) == "0 functions patched, 1 module not imported yet"
    load()
    assert str(report) == "1 function patched"
    torchproof.apply_patches(folder)
    assert load().cached(1) == 101


def test_the_folder_can_be_read_and_says_what_it_replaces(library: Path) -> None:
    folder = patched(library, times_100("static"))
    text = (folder / "fakelib_model.py").read_text()
    assert "proved: breaks 2 -> 1" in text and "GB101" in text
    assert (
        "class Net:\n\n    # fakelib.model: Net.static\n    # replaces sha256" in text
    )
    assert (
        "    @staticmethod\n    def static(x):\n        return x + SCALE * 10" in text
    )
    compile(text, "patch", "exec")
    manifest = json.loads((folder / "manifest.json").read_text())
    [module] = manifest["modules"]
    assert module["module"] == "fakelib.model"
    assert len(module["functions"]["Net.static"]) == 64
    assert not list(Path().glob(".torchproof-*"))


def test_settings_are_code_in_the_folder(library: Path) -> None:
    run = run_of(
        setting(Setting("dynamo.capture_scalar_outputs", True)),
        setting(Setting("compile.dynamic", True)),
        setting(marks=[Mark("batch['ids']", 0, "maybe_mark_dynamic")]),
        edit(library, times_100("static")(LIBRARY)),
    )
    run = deliver(run, patch="fixes_of_model")
    assert {fix.status for fix in run.fixes} == {"applied"}
    text = Path("fixes_of_model/__init__.py").read_text()
    scope: dict[str, object] = {"__file__": "fixes_of_model/__init__.py"}
    exec(compile(text, "init", "exec"), scope)
    assert scope["COMPILE_ARGUMENTS"] == {"dynamic": True}
    assert "    torch._dynamo.config.capture_scalar_outputs = True\n" in text
    assert "def mark(batch):" in text and "maybe_mark_dynamic(batch['ids'], 0)" in text


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("SCALE = 10", "SCALE = 20", "more than functions"),
        ("    size = 3", "    size = 4", "more than functions"),
        ("def conditional", "def renamed", "removes conditional"),
    ],
)
def test_edits_outside_of_functions_are_no_patch(
    library: Path, old: str, new: str, why: str
) -> None:
    run = run_of(edit(library, LIBRARY.replace(old, new)))
    [fix] = deliver(run, patch="patches").fixes
    assert fix.status == "verified" and why in fix.why
    assert not Path("patches").exists()


def test_the_users_own_files_are_not_in_a_patch(library: Path) -> None:
    own = Path("model.py").absolute()
    own.write_text("def f(x):\n    return x\n")
    run = run_of(edit(own, "def f(x):\n    return x + 1\n"))
    assert deliver(run, patch="patches") == run
    assert not Path("patches").exists()


def test_a_patch_is_checked_before_it_is_placed(library: Path) -> None:
    run = run_of(edit(library, times_100("static")(LIBRARY)))
    seen: list[set[str]] = []

    def check(fixes: Sequence[Fix], folder: Path | None) -> str | None:
        assert folder is not None and not Path("patches").exists()
        seen.append({path.name for path in folder.iterdir()})
        return "it is slower" if len(seen) == 1 else None

    refused = deliver(run, patch="patches", check=check)
    assert refused.error is not None and refused.error.endswith("it is slower")
    assert not Path("patches").exists()
    deliver(run, patch="patches", check=check)
    assert {path.name for path in Path("patches").iterdir()} == seen[1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "not a patch folder"),
        ("{", "not a manifest"),
        ("[]", "not the manifest"),
        ('{"schema": 99}', "newer torchproof"),
        ('{"schema": 1}', "not a manifest"),
    ],
)
def test_a_folder_that_is_no_patch(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=why):
        torchproof.apply_patches(tmp_path)
