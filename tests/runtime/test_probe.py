"""What kills the child is told in one line; what cannot reach it is told apart."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from probed import Probed
from torch import nn

from torchproof.runtime import speed_trial
from torchproof.runtime.probe import NotProbed, probe


def probed(
    model: object, seconds: float = 100, **compile_arguments: object
) -> str | None:
    arguments = compile_arguments or {"backend": "aot_eager"}
    x = torch.ones(2, 4)
    return probe(model, (x,), {}, compile_arguments=arguments, seconds=seconds)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Two at a time, as a child spends most of its life importing torch."""
    note = str(tmp_path_factory.mktemp("hang") / "pid")
    deeds = ("nothing", "segfault", "hang")

    def run(deed: str) -> str | None:
        if deed == "nothing":
            return probed(Probed(deed))
        # At once, without compiling first.
        seconds = 4 if deed == "hang" else 100
        return probed(Probed(deed, note), seconds, disable=True)

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(deeds, pool.map(run, deeds), strict=True))
    return {**found, "note": note}


def test_a_model_that_runs_is_fine(outcomes: dict[str, str | None]) -> None:
    assert outcomes["nothing"] is None


def test_a_crash_is_named_with_its_place(outcomes: dict[str, str | None]) -> None:
    why = outcomes["segfault"] or ""
    assert "SIGSEGV" in why and "string_at (__init__.py)" in why


def test_a_hang_ends_with_all_it_started(outcomes: dict[str, str | None]) -> None:
    assert re.search(r"\b4 s\b.*\bact \(", outcomes["hang"] or "")
    note = outcomes["note"]
    assert note is not None
    pid = int(Path(note).read_text())
    assert not psutil.pid_exists(pid) or (
        psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "why"),
    [
        ("die", "SIGKILL"),
        ("leave", "3: last words"),
        ("raise", "ValueError: boom"),
    ],
)
def test_other_ends(deed: str, why: str) -> None:
    assert (probed(Probed(deed)) or "").endswith(why)


@pytest.mark.slow
def test_a_class_the_child_cannot_import() -> None:
    model = Probed("nothing")
    model.__class__ = type("Here", (Probed,), {"__module__": "__main__"})
    main = __import__("__main__")
    main.Here = type(model)
    try:
        with pytest.raises(NotProbed, match=r"AttributeError.*Here"):
            probed(model)
    finally:
        del main.Here


def test_what_cannot_be_pickled_or_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(NotProbed, match="lambda"):
        probed(lambda x: x)
    monkeypatch.setattr(speed_trial, "free_bytes", lambda device: 10)
    with pytest.raises(NotProbed, match=speed_trial.lack_of_memory(nn.Linear(4, 4))):
        probed(nn.Linear(4, 4))
