"""To which phase benchmarks/first_calls.py counts a stack, innermost frame first."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.first_calls import phase_of

RECORDER = "/src/torchproof/runtime/cudagraph/recorder.py"
RUN = ("/src/torchproof/runtime/cudagraph/capture.py", "rehearse")
INDUCTOR = "/site-packages/torch/_inductor/lowering.py"
IMPORT = ("<frozen importlib._bootstrap>", "_find_and_load")


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        ([RUN, (RECORDER, "_stable_run")], "watched eager runs"),
        ([RUN, (RECORDER, "_rehearse")], "warm-up"),
        ([(INDUCTOR, "lower"), RUN, (RECORDER, "_rehearse")], "code generation"),
        ([(INDUCTOR, "<module>"), IMPORT, (RECORDER, "_rehearse")], "imports"),
        ([RUN], "other of graph"),
        ([("/src/torchproof/strategies/regions.py", "find")], "other of torchproof"),
        ([("/home/user/model.py", "forward")], "other"),
        ([], "other"),
    ],
)
def test_the_phase_of_a_stack(stack: list[tuple[str, str]], phase: str) -> None:
    assert phase_of(stack) == phase
