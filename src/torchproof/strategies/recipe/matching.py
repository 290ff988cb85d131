"""Lists what differs between where a recipe was measured and this process.

A recipe with a decisive difference is not followed, because its effect was not measured
here. Other differences may change its gain but not its answers, and are only reported.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torchproof.records import shapes
from torchproof.strategies.recipe import Recipe
from torchproof.strategies.recipe.fingerprint import fingerprint
from torchproof.torch_private import triton_version

# The keys of an environment that a recipe stores, and their names in messages.
ENVIRONMENT_KEYS = {
    "torch": "torch",
    "device": "device",
    "gpu": "GPU",
    "cuda": "CUDA",
    "triton": "Triton",
    "python": "Python",
    "machine": "machine",
    "cores": "cores",
    "threads": "threads",
    "ranks": "ranks",
}
# A recipe stores it too. A model may be compiled before it is wrapped, so it is not
# compared.
_WRAP = "wrap"
_DECISIVE = ("torch", "device", "gpu", "cuda", "triton")
_OF_GPUS = ("gpu", "cuda", "triton")


@dataclass(frozen=True)
class Difference:
    """One difference between the recipe and here; None means unknown."""

    what: str
    recipe: Any
    here: Any
    decisive: bool = True
    words: str | None = None  # a sentence in place of the two values

    def __str__(self) -> str:
        if self.words is not None:
            return self.words
        return f"{self.what} {self.recipe} in the recipe, {_shown(self.here)} here"


def environment_of(environment: shapes.Environment) -> shapes.Environment:
    """The part of a run's environment that a recipe stores."""
    # Without a GPU's if the model did not run on it.
    out = () if environment.get("device", "cuda") == "cuda" else _OF_GPUS
    values = {
        name: value
        for name, value in environment.items()
        if name in (*ENVIRONMENT_KEYS, _WRAP) and value is not None and name not in out
    }
    return cast(shapes.Environment, values)


def environment_here(model: Any) -> shapes.Environment:
    """The same part of this process's environment, for a model; imports nothing.

    A function has no device of its own, so the GPU is included if there is one.
    """
    torch = sys.modules.get("torch")
    environment: shapes.Environment = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
    if torch is None:
        return environment
    environment["torch"] = str(torch.__version__)
    environment["threads"] = torch.get_num_threads()
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        environment["ranks"] = group.get_world_size()
    device = _device_of(model)
    if device is not None:
        environment["device"] = device.type
    if torch.cuda.is_available() if device is None else device.type == "cuda":
        environment["gpu"] = torch.cuda.get_device_name(device)
        environment["cuda"] = torch.version.cuda
        environment["triton"] = triton_version()
    return environment_of(environment)


def _device_of(model: Any) -> Any:
    """The device of the first parameter or buffer; None if there is none."""
    for tensors in ("parameters", "buffers"):
        for tensor in getattr(model, tensors, tuple)():
            return tensor.device
    return None


def differences(
    recipe: Recipe, model: Any, environment: shapes.Environment | None = None
) -> list[Difference]:
    """All differences from `environment`, by default this process; decisive first."""
    every = [
        *_of_environment(recipe, environment or environment_here(model)),
        *_of_model(recipe, fingerprint(model)),
    ]
    return sorted(every, key=lambda each: not each.decisive)


# -- the environment -------------------------------------------------------------------


def _of_environment(
    recipe: Recipe, current: shapes.Environment
) -> Iterator[Difference]:
    recorded = recipe.environment
    if not recorded:
        yield _unchecked("environment", "the recipe has no environment")
        return
    same_kind = recorded.get("device") == current.get("device", recorded.get("device"))
    for name, word in ENVIRONMENT_KEYS.items():
        is_compared = name in recorded and not (name == "device" and same_kind)
        if name in _OF_GPUS and not (same_kind and recorded.get("device") == "cuda"):
            continue  # the difference of the device covers it
        there, here = recorded.get(name), current.get(name)
        if is_compared and there != here:
            decisive = name in _DECISIVE
            if name == "torch" and _release(there) == _release(here):
                decisive = False  # the same source, built for something else
            yield Difference(word, there, here, decisive)


def _release(version: Any) -> str:
    """2.13.0 for 2.13.0+cu130; a build from source keeps its commit."""
    text = str(version)
    release, _, built = text.partition("+")
    return text if built.startswith("git") else release


# -- the model -------------------------------------------------------------------------


def _of_model(recipe: Recipe, current: shapes.Fingerprint) -> Iterator[Difference]:
    recorded = recipe.model
    if not recorded:
        yield _unchecked("model", "the recipe has no fingerprint of the model")
        return
    if recorded.get("class") not in (None, current["class"]):
        yield Difference("model", recorded["class"], current["class"])
        return  # everything else differs too
    yield from _of_structure(recorded, current)
    yield from _of_code(recorded.get("code") or {}, current["code"])


def _of_structure(
    recorded: shapes.Fingerprint, current: shapes.Fingerprint
) -> Iterator[Difference]:
    if recorded.get("structure") == current["structure"]:
        return
    if recorded.get("structure") is None:
        yield _unchecked("structure", "the recipe has no structure of the model")
        return
    before, now = recorded.get("parameters"), current["parameters"]
    if before is not None and now is not None and before != now:
        more = now - before
        how = "more" if more > 0 else "fewer"
        words = f"the model has {abs(more):,} {how} parameters"
    else:
        words = "the model has other submodules, or tensors of other types"
    values = recorded["structure"], current["structure"]
    yield Difference("structure", *values, words=words)


def _of_code(
    recorded: Mapping[str, str | None], current: Mapping[str, str | None]
) -> Iterator[Difference]:
    """Compares code hashes; a file may have another module name here."""
    missed = {k: v for k, v in recorded.items() if v and v not in current.values()}
    gone = [name for name in missed if name not in current]
    for name, code in missed.items():
        if current.get(name, code) is None:
            continue  # reported below
        changed = "is not part of the model here" if name in gone else "changed"
        words = f"the code of {name} {changed}"
        yield Difference(f"code of {name}", code, current.get(name), words=words)
    for name, hashed in sorted(current.items()):
        # Code that replaces missing code is covered by the difference above.
        is_covered = hashed in recorded.values() or name in recorded or gone
        if hashed is None or not is_covered:
            yield _unchecked(f"code of {name}", f"the code of {name} is unknown")


def _unchecked(what: str, why: str) -> Difference:
    return Difference(what, None, None, decisive=False, words=f"not checked: {why}")


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
