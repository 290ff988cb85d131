"""Turns a trusted pack into a compiled model.

Takes an open pack and the model, returns the model with the compiled code installed, or
raises `Refused` if the pack is incompatible.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

import torch

from torchproof.records import JsonObject, one_line
from torchproof.runtime import build, production
from torchproof.runtime.loading import (
    cache_install,
    compatibility,
    packages,
    precompiled_calls,
    source_hash,
    warm_up,
)
from torchproof.runtime.loading.pack_agreement import PackAgreement, RefusedByRanks
from torchproof.runtime.loading.pack_details import (
    CachesDetails,
    PackageDetails,
    read_details,
)
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.manifest import Refused
from torchproof.runtime.status_report import Fallback
from torchproof.runtime.telemetry import log
from torchproof.strategies import FILE, InvalidRecipe, Recipe, RecipeSource, loads
from torchproof.torch_private import cache_lookups, early_start, prebuilt

_GRADIENTS_ON = (
    "a call with gradients is compiled here, because the pack was built without them:"
    " call the model under torch.no_grad(), or build the pack with --train"
)
_INFERENCE_MODE = (
    "a call in inference mode is traced again, because load was called outside of it:"
    " call torchproof.load under torch.inference_mode() too"
)
_OTHER_GRAPH = "the code, its inputs or the number of threads differ from the build's"
_BUILD_ANEW = "build one for this machine with torchproof pack TARGET --for deploy"


def open_model(
    contents: Contents,
    model: Any,
    *,
    warm: bool,
    wait: bool = True,
    ranks: PackAgreement | None = None,
) -> Any:
    """The model with the pack's code. Raises `Refused` if the pack cannot be used."""
    path, manifest = contents.path, contents.manifest
    if manifest.kind != "deploy":
        raise Refused(f"{path} is a {manifest.kind} pack, not a deploy pack")
    artifact = manifest.details.get("artifact")
    if artifact not in ("caches", "aoti"):
        raise Refused(
            f"{path} contains the artifact {artifact!r:.40}, which this torchproof"
            " does not support"
        )
    if artifact == "caches" and model is None:
        raise Refused(
            f"{path} contains compiled code but no model: pass the model to load"
        )
    try:
        if artifact == "caches":
            return _from_caches(contents, model, warm=warm, wait=wait, ranks=ranks)
        return _package(contents)
    except RefusedByRanks as error:
        raise Refused(f"{path} is refused: {error}") from None
    except (Refused, InvalidRecipe) as error:
        raise Refused(f"{path} is refused: {error}; {_BUILD_ANEW}") from None


def _package(contents: Contents) -> Any:
    details = read_details(PackageDetails, contents)
    here = compatibility.place_here(details.place.device)
    for why in compatibility.refusals(details.place, here):
        raise Refused(why)
    with _refusing():
        return packages.load_package(contents)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Refuse the pack if torch cannot load it, or a file of it is missing."""
    try:
        yield
    except (Refused, InvalidRecipe):
        raise
    except Exception as error:
        raise Refused(f"it cannot be loaded: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", 200)


def compile_without_pack(
    model: Any, path: str, why: str, ranks: PackAgreement | None, *, wait: bool
) -> Any:
    """Compiles the model without the pack and logs the reason.

    It runs eager if other ranks do: those that could use a pack with collectives.
    """
    goes_eager = ranks is not None and ranks.has_collectives
    what = "runs eager on all ranks" if goes_eager else "compiles from scratch"
    log.warning("the pack is not used, and the model %s: %s", what, why)
    compiled = production.compile(model, wait=wait)
    entry = production.compiled_forward_of(compiled)
    entry.pack = {
        "path": path,
        "used": False,
        "why_not": why,
        "ranks": [] if ranks is None else ranks.problems,
    }
    if goes_eager:
        entry.go_eager(Fallback("pack", "the model", why))
    return compiled


def _from_caches(
    contents: Contents,
    model: Any,
    *,
    warm: bool,
    wait: bool,
    ranks: PackAgreement | None,
) -> Any:
    start = time.perf_counter()
    early_start.import_compiler()
    with _refusing():
        recipe = loads(contents.read(FILE).decode(), FILE)
        details = read_details(CachesDetails, contents)
        differences = _assert_fits(details, recipe, build.unwrapped(model))
    cache_install.install(contents)
    if ranks is not None:
        # A pack of an earlier version does not say it.
        collectives = details.collectives is not False
        ranks.accept(contents, collectives=collectives, warm=warm)
        warm = warm and ranks.objection is None
    compiled = production.compile(model, recipe=recipe)
    entry = production.compiled_forward_of(compiled)
    report: JsonObject = {
        "path": str(contents.path),
        "used": True,
        "why_not": None,
        "differs": differences,
        "graphs": None,
        "of": len(details.graphs),
        "untraced": [],
        "misses": [],
        "notes": [],
        "seconds": None,
        "ranks": [] if ranks is None else ranks.problems,
        "collectives": details.collectives,
    }
    entry.pack = report
    if entry.strategy != "eager":
        with prebuilt.without_probes(details.place.vector_sets):
            installed = precompiled_calls.install(contents, entry, details)
            report |= {"untraced": [*installed.calls], "notes": installed.notes}
            if warm:
                # Without DDP around it, which would wait for other ranks.
                subject = compiled if entry.owner is None else entry.owner
                _warm(subject, entry.eager, details, installed.changed, report=report)
        entry.engine.before_compiling = _ModeCheck(details, report)
        if not wait:  # not earlier: the warm-up would leave its calls to later ones
            entry.stop_waiting()
    report["seconds"] = time.perf_counter() - start
    _log(report)
    return compiled


def _assert_fits(details: CachesDetails, recipe: Recipe, model: Any) -> list[str]:
    """Returns harmless differences; raises `Refused` for the others."""
    then = details.place
    here = compatibility.place_here(compatibility.device_of(model) or then.device)
    reasons = [*compatibility.refusals(then, here)]
    reasons += [] if reasons else compatibility.rank_refusals(details)
    reasons += [] if reasons else source_hash.changes(details.code)
    adoption = RecipeSource(recipe).adopted(model)
    if adoption.why_not and not reasons:
        reasons.append(adoption.why_not)
    if not cache_lookups.caches_are_on():
        reasons.append("torch's caches are disabled in this process")
    if reasons:
        raise Refused("; ".join(reasons))
    return [*compatibility.speed_differences(then, here)]


def _warm(
    compiled: Any,
    eager: Any,
    details: CachesDetails,
    changed: str | None,
    *,
    report: JsonObject,
) -> None:
    with cache_lookups.graph_lookups(details.world_size) as log:
        run = functools.partial(_call, compiled)
        notes = warm_up.warm(compiled, run, eager, details)
    keys = {*details.graphs}
    loaded = keys & {each.key for each in log.graphs if each.hit}
    for number in report["untraced"]:
        loaded |= keys & set(details.calls[number].keys)
    report["graphs"] = len(loaded)
    report["misses"] = [*dict.fromkeys(_misses(log, details, changed))]
    report["notes"] += notes


def _misses(
    log: cache_lookups.LookupLog, details: CachesDetails, changed: str | None
) -> Iterator[str]:
    """Why graphs were compiled here."""
    for why in log.bypassed:
        yield f"torch does not cache it: {why}"
    for lookup in log.graphs:
        if not lookup.hit and lookup.key in details.graphs:
            yield "it is in the pack, but torch rejected it: its guards fail here"
        elif not lookup.hit:
            yield f"a graph is not in the pack: {changed or _OTHER_GRAPH}"


class _ModeCheck:
    """Says before a compilation that the mode of the call differs from the pack's.

    Torch would only report that a guard on the mode failed, after the compilation.
    """

    def __init__(self, details: CachesDetails, report: JsonObject) -> None:
        self._without_gradients = not any(call.gradients for call in details.calls)
        self._inference = torch.is_inference_mode_enabled()
        self._report = report

    def __call__(self) -> None:
        why = None
        if self._without_gradients and torch.is_grad_enabled():
            why = _GRADIENTS_ON
        elif torch.is_inference_mode_enabled() and not self._inference:
            why = _INFERENCE_MODE
        if why is not None and why not in self._report["misses"]:
            self._report["misses"].append(why)
            log.warning("%s: %s", self._report["path"], why)


def _call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


def _log(report: JsonObject) -> None:
    count = "-" if report["graphs"] is None else report["graphs"]
    log.info(
        "%s: %s of %s graphs came from the pack", report["path"], count, report["of"]
    )
    for why in (*report["misses"], *report["notes"], *report["ranks"]):
        log.warning("%s: %s", report["path"], why)
