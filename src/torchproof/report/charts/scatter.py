"""The scatter plot of the trials of a search: time per step against first call.

Positions are in percent, so that the plot fills the page while its text keeps its
size. A trial without both times is only in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchproof.records import Trial, Tuning
from torchproof.report import numbers, run_words, search_words
from torchproof.report.charts import axes
from torchproof.report.charts.axes import Mark, Plot

# The plot on a phone, in pixels: labels that do not overlap there overlap nowhere.
_WIDTH, _HEIGHT = 270.0, 300.0
_LETTER, _LINE, _MARK = 6.5, 13.0, 9.0
LONGEST = 24  # characters of a label
_MEANINGS = {
    "faster": "faster than eager",
    "slower": "slower than eager",
    "level": "difference not significant",
}
_LEGEND = (
    "Lower means a shorter step, further left a shorter first call. Numbers refer to"
    " the table. Trials that failed or gave wrong outputs are listed below."
)
Key = tuple[str, str, str]
Box = tuple[float, float, float, float]  # left, top, right, bottom


def plot(search: Tuning) -> Plot | None:
    """None if fewer than two trials have both times."""
    ranked = search_words.ranked(search)
    points = [t for t in ranked if _drawable(t.first_call_s) and _drawable(t.step_ms)]
    if len(points) < 2:
        return None
    xs, ys = ([_time(trial, name) for trial in points] for name in _TIMES)
    place_x, x = axes.axis(xs, axes.seconds)
    place_y, y = axes.axis(ys, axes.milliseconds)
    marks = [
        _mark(trial, place_x(first), 100 - place_y(step), search)
        for trial, first, step in zip(points, xs, ys, strict=True)
    ]
    missing = tuple(trial.name for trial in ranked if trial not in points)
    legend = _LEGEND
    if missing:
        names = ", ".join(missing)
        legend += f" Not drawn, because the first call was not recorded: {names}."
    return Plot(
        marks=tuple(_labelled(marks)),
        x=x,
        y=axes.upwards(y),
        names=("first call", "time per step"),
        keys=tuple(_keys(points, marks)),
        words=_words(points, search),
        legend=legend,
        missing=missing,
    )


def _keys(points: Sequence[Trial], marks: Sequence[Mark]) -> Iterator[Key]:
    """The legend: shape, tone and meaning of each kind of mark."""
    kinds = {mark.kind: mark.tone for mark in marks}
    tones = {mark.tone.split()[0] for mark in marks if mark.kind == "other"}
    if "chosen" in kinds:
        yield "chosen", kinds["chosen"], "chosen"
    if "eager" in kinds:
        yield "eager", "eager", "eager"
    for tone, meaning in _MEANINGS.items():
        if tone in tones:
            yield "other", tone, meaning
    if any(trial.is_warm for trial in points):
        yield "other", "level is-warm", "hollow: not a cold first call, see below"


_TIMES = ("first_call_s", "step_ms")


def _time(trial: Trial, name: str) -> float:
    return float(getattr(trial, name))


def _drawable(value: float | None) -> bool:
    return numbers.known(value) and value > 0


def _mark(trial: Trial, x: float, y: float, search: Tuning) -> Mark:
    chosen = trial.name == search.chosen
    kind = "chosen" if chosen else "eager" if trial.is_eager else "other"
    first = f"first call {numbers.seconds(trial.first_call_s)}"
    first += " with warm caches" if trial.is_warm else ""
    title = f"{trial.name}: step {numbers.milliseconds(trial.step_ms)}, {first}"
    number = str(search_words.ranked(search).index(trial) + 1)
    name = trial.name if len(trial.name) <= LONGEST else f"{trial.name[:LONGEST]} ..."
    label = number if kind == "other" else name
    place = round(x, 2), round(y, 2)
    tone = f"{_tone(trial)} is-warm" if trial.is_warm else _tone(trial)
    return Mark(trial.name, kind, tone, *place, title, label)


def _tone(trial: Trial) -> str:
    if trial.is_eager:
        return "eager"
    return run_words.tone(trial.vs_eager_low, trial.vs_eager_high)


def _words(drawn: Sequence[Trial], search: Tuning) -> str:
    least = min(drawn, key=lambda trial: trial.step_ms or 0.0)
    text = f"{numbers.amount(len(drawn), 'trial')}; {least.name} has the shortest step"
    text += f" ({numbers.milliseconds(least.step_ms)})"
    winner = search_words.winner(search)
    if winner in drawn and winner is not None:
        text += f"; chosen: {winner.name}, step {numbers.milliseconds(winner.step_ms)}"
        text += f", first call {numbers.seconds(winner.first_call_s)}"
    return f"{text}. The table below has all numbers."


# -- labels ----------------------------------------------------------------------------


def _labelled(marks: Sequence[Mark]) -> Iterator[Mark]:
    """Labels eager and the chosen trial by name, others by number if there is room."""
    boxes = [_around(mark) for mark in marks]
    order = {"chosen": 0, "eager": 1, "other": 2}
    labelled = []
    for mark in sorted(marks, key=lambda mark: order[mark.kind]):
        placed = _placed(mark, boxes)
        boxes += [_box(placed)] if placed.label else []
        labelled.append(placed)
    yield from reversed(labelled)


def _placed(mark: Mark, boxes: Sequence[Box]) -> Mark:
    """Places the label where it overlaps least; a number must not overlap at all."""
    own_box = _around(mark)
    others = [box for box in boxes if box != own_box]
    aside = _MARK + 4 if mark.kind == "chosen" else _MARK
    sides = [("start", aside, 4.0), ("end", -aside, 4.0)]
    above = _anchor(mark.x)
    places = [*sides, (above, 0.0, -aside - 3), (above, 0.0, aside + _LINE)]
    tried = [replace(mark, anchor=a, dx=dx, dy=dy) for a, dx, dy in places]
    inside = [each for each in tried if _is_inside(_box(each))] or tried[2:3]

    def covered(each: Mark) -> int:
        return sum(_overlap(_box(each), other) for other in others)

    best = min(inside, key=covered)
    return replace(best, label="") if mark.kind == "other" and covered(best) else best


def _is_inside(box: Box) -> bool:
    across = box[0] >= -_MARK and box[2] <= _WIDTH + _MARK
    return across and box[1] >= -_LINE and box[3] <= _HEIGHT


def _anchor(x: float) -> str:
    return "start" if x < 35 else "end" if x > 65 else "middle"


def _around(mark: Mark) -> Box:
    x, y = mark.x / 100 * _WIDTH, mark.y / 100 * _HEIGHT
    half = _MARK * 0.75
    return x - half, y - half, x + half, y + half


def _box(mark: Mark) -> Box:
    """The bounding box of a label."""
    x, y = mark.x / 100 * _WIDTH + mark.dx, mark.y / 100 * _HEIGHT + mark.dy
    long = len(mark.label) * _LETTER
    left = {"start": x, "middle": x - long / 2, "end": x - long}[mark.anchor]
    return left, y - _LINE + 3, left + long, y + 3


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
