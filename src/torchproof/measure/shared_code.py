"""Tells whether the blocks of a region share one compiled artifact, or why not."""

from __future__ import annotations

from collections import Counter

from torchproof.observe import guard_failures
from torchproof.records import Guard
from torchproof.strategies import Applied, Compilation, Site

_SHAPES = ("size", "size_one")  # guards that lead to code for other shapes


def artifacts(applied: Applied) -> dict[str, int]:
    """Returns how often each region was compiled for the same kind of call.

    1 means that all blocks run the same code, 0 that nothing was compiled. Code for
    other shapes, for training and for calls without gradients is not added up.
    """
    return {
        region.name: _artifact_count(_of(applied, region)) for region in applied.regions
    }


def sharing(applied: Applied) -> list[str]:
    """Returns a sentence for each region whose blocks do not share compiled code."""
    sentences = []
    for region in applied.regions:
        compilations = _of(applied, region)
        count, blocks = _artifact_count(compilations), len(region.paths)
        if count == 0:
            sentences.append(f"{region.name}: no block was compiled on its own")
        if count < 2:
            continue
        sentence = (
            f"the {blocks} x {region.name} do not share one artifact: {count} were"
            if blocks > 1
            else f"{region.name} needs more than one artifact: {count} were"
        )
        sentence += f" compiled for the same shapes{_why(compilations)}"
        if any(each.refused for each in compilations):
            sentence += (
                "; they reached torch's recompile limit, and the rest runs eager"
            )
        sentences.append(sentence)
    return sentences


def _of(applied: Applied, region: Site) -> list[Compilation]:
    return [each for each in applied.compilations if each.path in region.paths]


def _artifact_count(compilations: list[Compilation]) -> int:
    times = Counter(each.circumstances for each in compilations if not each.refused)
    return max(times.values(), default=0)


def _why(compilations: list[Compilation]) -> str:
    """Returns the guard that most often prevents blocks from sharing code."""
    blamed: Counter[str] = Counter()
    for each in compilations:
        guards = [guard_failures.parse(reason) for reason in each.reasons]
        blamed.update({_words(guard) for guard in guards if guard.cause not in _SHAPES})
    return f", because of {blamed.most_common(1)[0][0]}" if blamed else ""


def _words(guard: Guard) -> str:
    if guard.cause in ("attribute", "value"):
        return guard.source
    return f"the {guard.cause.replace('_', ' ')} of {guard.source}"
