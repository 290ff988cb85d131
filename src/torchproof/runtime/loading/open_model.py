"""From a pack that is trusted to a model that runs its code, or the reason why not."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any

from torchproof.records import one_line
from torchproof.runtime import production
from torchproof.runtime.loading import (
    cache_install,
    compatibility,
    graph_origin,
    precompiled_calls,
    source_hash,
    warm_up,
)
from torchproof.runtime.loading.pack_details import (
    assert_caches,
    assert_package,
    read_graphs,
)
from torchproof.runtime.loading.packages import ARTIFACTS
from torchproof.runtime.pack_format.contents import Contents
from torchproof.runtime.pack_format.refusal import Refused
from torchproof.runtime.telemetry import log
from torchproof.strategies import FILE, InvalidRecipe, Recipe, RecipeSource, loads
from torchproof.torch_private import cache_lookups

_AGAIN = "torchproof pack TARGET --for deploy makes one for here"


def open_model(contents: Contents, model: Any, *, warm: bool) -> Any:
    """What the pack makes of the model; `Refused` says why it is not to be used."""
    manifest = contents.manifest
    if manifest.kind != "deploy":
        raise Refused(f"{contents.path} is a {manifest.kind} pack: nothing to deploy")
    artifact = manifest.details.get("artifact")
    if artifact == "caches":
        return _from_caches(contents, model, warm=warm)
    if isinstance(artifact, str) and artifact in ARTIFACTS:
        return _package(contents, artifact)
    raise Refused(
        f"{contents.path} holds {artifact!r:.40}, which this torchproof does not know"
    )


def _package(contents: Contents, artifact: str) -> Any:
    try:
        assert_package(contents.manifest.details)
        if artifact != "torchscript":  # which holds no machine code
            _assert_place(contents)
        return ARTIFACTS[artifact](contents)
    except Refused as error:
        raise Refused(f"{contents.path} is refused: {error}; {_AGAIN}") from None
    except Exception as error:  # of torch's loaders, or of papers that lack something
        told = one_line(f"{type(error).__name__}: {error}", 200)
        raise Refused(
            f"{contents.path} is refused: it cannot be opened here: {told}; {_AGAIN}"
        ) from None


def _assert_place(contents: Contents) -> None:
    details = contents.manifest.details
    then = details["place"]
    for why in compatibility.refusals(
        then, compatibility.environment_facts(then["device"])
    ):
        raise Refused(why)


def compile_without_pack(model: Any, path: str, why: str) -> Any:
    """The model compiled as if there were no pack, which the log says once."""
    log.warning("the pack is not used, and compiling starts cold: %s", why)
    compiled = production.compile(model)
    entry = production.compiled_forward_of(compiled)
    entry.pack = {"path": path, "used": False, "why_not": why}
    return compiled


def _from_caches(contents: Contents, model: Any, *, warm: bool) -> Any:
    begun = time.perf_counter()
    if model is None:
        raise Refused(
            f"{contents.path} holds compiled code, not the model: give the model too"
        )
    details, path = contents.manifest.details, str(contents.path)
    try:
        recipe = loads(contents.read(FILE).decode(), FILE)
        known = read_graphs(contents)
        assert_caches(details)
        told = _assert_fits(details, recipe, model)
    except (Refused, InvalidRecipe) as error:
        raise Refused(f"{path} is refused: {error}; {_AGAIN}") from None
    except Exception as error:  # of torch, or of a manifest that lacks something
        reason = one_line(f"{type(error).__name__}: {error}", 200)
        raise Refused(f"{path} is refused: its papers are damaged: {reason}") from None
    cache_install.install(contents)
    compiled = production.compile(model, recipe=recipe)
    entry = production.compiled_forward_of(compiled)
    report: dict[str, Any] = {
        "path": path,
        "used": True,
        "why_not": None,
        "differs": told,
        "graphs": None,
        "of": details["graphs"],
        "untraced": [],
        "misses": [],
        "notes": [],
        "seconds": None,
    }
    entry.pack = report
    if entry.strategy != "eager":
        found = precompiled_calls.install(contents, entry, details)
        report |= {"untraced": [*found.calls], "notes": found.notes}
        if warm:
            _warm_or_tell(compiled, details, known, report=report)
    report["seconds"] = time.perf_counter() - begun
    _log(report)
    return compiled


def _assert_fits(details: Mapping[str, Any], recipe: Recipe, model: Any) -> list[str]:
    """What differs and does not matter; `Refused` with what does."""
    then = details["place"]
    here = compatibility.environment_facts(
        compatibility.device_of(model) or then["device"]
    )
    reasons = [*compatibility.refusals(then, here)]
    reasons += [] if reasons else source_hash.changes(details["code"])
    adoption = RecipeSource(recipe).adopted(model)
    if adoption.why_not and not reasons:
        reasons.append(adoption.why_not)
    if not cache_lookups.caches_are_on():
        reasons.append("torch's caches are switched off in this process")
    if reasons:
        raise Refused("; ".join(reasons))
    return [*compatibility.speed_differences(then, here)]


def _warm_or_tell(
    compiled: Any,
    details: Mapping[str, Any],
    known: graph_origin.PackedGraphs,
    *,
    report: dict[str, Any],
) -> None:
    """A service starts, if not as fast."""
    try:
        _warm(compiled, details, known, report=report)
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}", 200)
        report["notes"] = [*report["notes"], f"its calls are not warmed: {reason}"]


def _warm(
    compiled: Any,
    details: Mapping[str, Any],
    known: graph_origin.PackedGraphs,
    *,
    report: dict[str, Any],
) -> None:
    seen = graph_origin.LookupLog()
    with cache_lookups.graph_lookups(seen.note):
        notes = warm_up.warm(compiled, functools.partial(_call, compiled), details)
    found = [each for each in seen.graphs if each.hit]
    keys = {each["key"] for each in known}
    here = {each.key for each in found if each.key in keys}
    for number in report["untraced"]:
        here |= keys & set(details["calls"][number].get("keys", ()))
    report["graphs"] = len(here)
    report["misses"] = graph_origin.misses(seen, known)
    report["notes"] = [*report["notes"], *notes]


def _call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
    return model(*args, **kwargs)


def _log(report: Mapping[str, Any]) -> None:
    counted = "-" if report["graphs"] is None else report["graphs"]
    log.info("%s: %s of %s graphs", report["path"], counted, report["of"])
    for why in (*report["misses"], *report["notes"]):
        log.warning("%s: %s", report["path"], why)
