"""What kills the child is told in one line; what cannot reach it is told apart."""

from __future__ import annotations

import re
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


def test_a_model_that_runs_is_fine() -> None:
    assert probed(Probed("nothing")) is None


def test_a_crash_is_named_with_its_place() -> None:
    why = probed(Probed("segfault"), disable=True) or ""  # without compiling first
    assert "SIGSEGV" in why and "string_at (__init__.py)" in why


@pytest.mark.slow
def test_a_hang_ends_with_all_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    why = probed(Probed("hang", str(note)), 4, disable=True)
    assert re.search(r"\b4 s\b.*\bact \(", why or "")
    pid = int(note.read_text())
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


def test_a_class_without_source_in_the_main_program() -> None:
    model = Probed("nothing")
    model.__class__ = type("Here", (Probed,), {"__module__": "__main__"})
    main = __import__("__main__")
    main.Here = type(model)
    try:
        with pytest.raises(NotProbed, match=r"Here is defined in the main program"):
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
