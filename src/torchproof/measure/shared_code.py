"""Whether the blocks of a region share one compiled artifact, and what prevents it."""

from __future__ import annotations

from collections import Counter

from torchproof.observe import guard_failures
from torchproof.strategies import Applied, Compilation, Site

_SHAPES = ("size", "size_one")  # causes that make code for other shapes, not copies


def artifacts(applied: Applied) -> dict[str, int]:
    """How often each region was compiled for one and the same kind of call.

    1: all blocks run the same code. Code for other shapes, for training and for calls
    without gradients is another matter and not counted on top; 0: nothing was compiled.
    """
    return {region.name: _repeats(_of(applied, region)) for region in applied.regions}


def sharing(applied: Applied) -> list[str]:
    """A sentence for each region whose blocks do not run the same compiled code."""
    said = []
    for region in applied.regions:
        made = _of(applied, region)
        count, blocks = _repeats(made), len(region.paths)
        if count == 0:
            said.append(f"{region.name}: nothing of it was compiled on its own")
        if count < 2:
            continue
        sentence = (
            f"the {blocks} x {region.name} do not share one artifact: {count} were"
            if blocks > 1
            else f"{region.name} needs more than one artifact: {count} were"
        )
        sentence += f" compiled for the same shapes{_why(made)}"
        if any(each.refused for each in made):
            sentence += "; torch's limit was reached, what is left runs eager"
        said.append(sentence)
    return said


def _of(applied: Applied, region: Site) -> list[Compilation]:
    return [each for each in applied.compilations if each.path in region.paths]


def _repeats(made: list[Compilation]) -> int:
    times = Counter(each.circumstances for each in made if not each.refused)
    return max(times.values(), default=0)


def _why(made: list[Compilation]) -> str:
    """The guard that kept most blocks from using what another had compiled."""
    about: Counter[str] = Counter()
    for each in made:
        found = [guard_failures.parse(reason) for reason in each.reasons]
        about.update({_words(guard) for guard in found if guard.cause not in _SHAPES})
    return f", because of {about.most_common(1)[0][0]}" if about else ""


def _words(guard: guard_failures.Guard) -> str:
    if guard.cause in ("attribute", "value"):
        return guard.source
    return f"the {guard.cause.replace('_', ' ')} of {guard.source}"
