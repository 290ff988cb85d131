"""What differs between where a recipe was measured and where it is to be applied.

A decisive difference forbids it: nobody has measured what it does there. Others are
told, since they change what it gains, not what it does.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchproof.strategies.recipe import Recipe
from torchproof.strategies.recipe.fingerprint import fingerprint
from torchproof.torch_private import triton_version

# What of an environment a recipe keeps, and how people call it.
FACTS = {
    "torch": "torch",
    "device": "device",
    "gpu": "GPU",
    "cuda": "CUDA",
    "triton": "Triton",
    "python": "Python",
    "machine": "machine",
    "cores": "cores",
    "threads": "threads",
}
_DECISIVE = ("torch", "device", "gpu", "cuda", "triton")
_OF_GPUS = ("gpu", "cuda", "triton")


@dataclass(frozen=True)
class Difference:
    """One thing that is another here; None stands for what is not known."""

    what: str
    recipe: Any
    here: Any
    decisive: bool = True
    words: str | None = None  # a whole sentence, where two values do not tell it

    def __str__(self) -> str:
        if self.words is not None:
            return self.words
        return f"{self.what} {self.recipe} in the recipe, {_shown(self.here)} here"


def environment_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Of all that is known about where a run was made, what a recipe keeps."""
    kept = {name: facts[name] for name in FACTS if facts.get(name) is not None}
    if kept.get("device", "cuda") == "cuda":
        return kept
    # Nothing was computed there.
    return {name: value for name, value in kept.items() if name not in _OF_GPUS}


def environment_here(model: Any) -> dict[str, Any]:
    """The same of this process, for a model; loads nothing.

    A function has no device of its own: what a GPU would be here is told as well.
    """
    torch = sys.modules.get("torch")
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
    if torch is None:
        return facts
    facts |= {"torch": str(torch.__version__), "threads": torch.get_num_threads()}
    device = _device_of(model)
    if device is not None:
        facts["device"] = device.type
    if torch.cuda.is_available() if device is None else device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["triton"] = triton_version()
    return environment_of(facts)


def _device_of(model: Any) -> Any:
    """Where the first of its parameters or buffers is; None where it has none."""
    for tensors in ("parameters", "buffers"):
        for tensor in getattr(model, tensors, tuple)():
            return tensor.device
    return None


def differences(
    recipe: Recipe, model: Any, environment: Mapping[str, Any] | None = None
) -> list[Difference]:
    """What is another here, by default in this process; decisive ones first."""
    found = [*_of_environment(recipe, environment or environment_here(model))]
    found += _of_model(recipe, fingerprint(model))
    return sorted(found, key=lambda each: not each.decisive)


# -- the environment -------------------------------------------------------------------


def _of_environment(recipe: Recipe, here: Mapping[str, Any]) -> Iterator[Difference]:
    then = recipe.environment
    if not then:
        words = "the recipe does not say where it was measured: that is not checked"
        yield Difference("environment", None, None, False, words)
        return
    same_kind = then.get("device") == here.get("device", then.get("device"))
    for name, word in FACTS.items():
        known = name in then and not (name == "device" and same_kind)
        if name in _OF_GPUS and not (same_kind and then.get("device") == "cuda"):
            continue  # the device says it all
        if known and then[name] != here.get(name):
            decisive = name in _DECISIVE
            if name == "torch" and _release(then[name]) == _release(here.get(name)):
                decisive = False  # the same source, built for something else
            yield Difference(word, then[name], here.get(name), decisive)


def _release(version: Any) -> str:
    """2.13.0 of 2.13.0+cu130; a build from source is told apart by its commit."""
    text = str(version)
    release, _, built = text.partition("+")
    return text if built.startswith("git") else release


# -- the model -------------------------------------------------------------------------


def _of_model(recipe: Recipe, here: Mapping[str, Any]) -> Iterator[Difference]:
    then = recipe.model
    if not then:
        words = "the recipe does not say which model it is for: that is not checked"
        yield Difference("model", None, None, False, words)
        return
    if then.get("class") not in (None, here["class"]):
        yield Difference("model", then["class"], here["class"])
        return  # of another model everything is another
    yield from _of_structure(then, here)
    yield from _of_code(then.get("code") or {}, here["code"])


def _of_structure(
    then: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[Difference]:
    if then.get("structure") == here["structure"]:
        return
    if then.get("structure") is None:
        words = "the recipe does not say how the model is built: that is not checked"
        yield Difference("structure", None, None, False, words)
        return
    counts = then.get("parameters"), here["parameters"]
    if None not in counts and counts[0] != counts[1]:
        more = counts[1] - counts[0]
        words = (
            f"the model has {abs(more):,} parameters {'more' if more > 0 else 'less'}"
        )
    else:
        words = "the model is built of other parts, or of tensors of other types"
    yield Difference("structure", then["structure"], here["structure"], True, words)


def _of_code(
    then: Mapping[str, str | None], here: Mapping[str, str | None]
) -> Iterator[Difference]:
    """The same code under another name is the same: files are loaded in many ways."""
    missed = {k: v for k, v in then.items() if v and v not in here.values()}
    gone = [name for name in missed if name not in here]
    for name, code in missed.items():
        if here.get(name, code) is None:
            continue  # told below
        changed = "is not what the model is made of here" if name in gone else "changed"
        words = f"the code of {name} {changed}"
        yield Difference(f"code of {name}", code, here.get(name), True, words)
    for name, seen in sorted(here.items()):
        # What has come in place of something that is gone needs no words of its own.
        if seen is not None and (seen in then.values() or name in then or gone):
            continue
        words = f"the code of {name} is not known: whether it changed is not checked"
        yield Difference(f"code of {name}", then.get(name), seen, False, words)


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
