"""One token of Llama 16x1024 with a static cache, for `torchproof tune` and `bench`.

torchproof tune benchmarks/decode_target.py:make --recipe benchmarks/results/decode.toml
"""

from __future__ import annotations

from typing import Any

from benchmarks import step_targets


def make() -> step_targets.Target:
    return step_targets.llama_decode()


def before_call(step: Any, index: int) -> None:
    """Back to the end of the prompt."""
    step.rewind()
