"""The child process of a script's benchmark: compiled and eager steps take turns.

`script_bench` starts it as `python -m` with a job (JSON) and the path of a stream.
The script runs once, as it is written. Its first steps run compiled until their times
are steady; then rounds of a few steps are taken, some compiled and some with torch's
stance "force_eager", in turn, so that drift of the machine hits both alike. A stance
changes only where a step begins: forward and backward of a step are of one kind. After
the last round the script goes on as if nobody watched.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchproof.measure import profiling
from torchproof.measure.compile_stats import CompileStats
from torchproof.observe import StepDetector
from torchproof.process import Stream, parent_death
from torchproof.targets import Target, script
from torchproof.torch_private import describe

ARMS = ("eager", "as-written")
FEWEST_ROUNDS = 4  # of each arm, for a verdict
_FEWEST_SAMPLES = 20  # of each arm, where the script goes on for as long
_SETTLE_S = 20.0
_TELL_S = 0.25
_LEAST_WARMUP, _WARMUP_MS = 6, 150.0  # what samples.steady asks for


def main(arguments: list[str]) -> int:
    job, stream = json.loads(arguments[0]), Stream(arguments[1])
    target = Target(**{**job["target"], "arguments": tuple(job["target"]["arguments"])})
    alternation = Alternation(stream, job)
    script.when_imported("torch", alternation.attach)
    try:
        return script.run(target, stream)
    finally:
        alternation.end()
        stream.write("environment", **describe(job))


class Alternation:
    """Warms up, then takes rounds, step by step as the script makes them."""

    def __init__(self, stream: Stream, job: Mapping[str, Any]) -> None:
        self.stream, self.job = stream, job
        self.steps = StepDetector(self._step_begins, self._start_over)
        self.compile_stats = CompileStats()
        self.imports_s: float | None = None
        self.seen = 0  # steps begun
        self.times: list[float] = []  # of steps in which nothing was compiled
        self.begun: float | None = None
        self.first_call_s: float | None = None
        self.compiled = 0
        self.rounds: Rounds | None = None
        self.told = 0.0

    def attach(self) -> None:
        self.steps.attach(self._prepare)

    def _prepare(self, arguments: Mapping[str, Any]) -> None:
        """At the first torch.compile: the compiler is imported, and watched."""
        if self.imports_s is not None:
            return
        inductor = arguments.get("backend") in {None, "inductor"}
        self.imports_s = self.compile_stats.open(inductor=inductor)
        if not inductor:
            from torchproof.torch_private import compile_costs

            if compile_costs.AUTOGRAD_CACHE_MODULE in sys.modules:
                self.compile_stats.watch_cache()
            else:  # it imports Inductor's cache, so that both are there then
                script.when_imported(
                    compile_costs.AUTOGRAD_CACHE_MODULE, self.compile_stats.watch_cache
                )

    def _step_begins(self) -> None:
        if _capturing():
            return
        self.seen += 1
        if self.rounds is None:
            self._warm_up()
        elif self.rounds.step_begins():
            self._tell()
        else:
            self.rounds.leave()
            self.steps.detach()
            self._write_compiled()
            self.stream.write("measured", steps=self.seen)

    # -- warm-up -------------------------------------------------------------------

    def _warm_up(self) -> None:
        _synchronise()
        now = time.perf_counter()
        if self.begun is None:
            self.stream.write("begun", environment=describe(self.job))
            self.settling = now
        else:
            self._step_ended((now - self.begun) * 1e3)
        if self._settled(now):
            return
        self._tell()
        self.begun = time.perf_counter()

    def _step_ended(self, ms: float) -> None:
        if self.first_call_s is None:
            self.first_call_s = ms / 1e3
            self._write_compiled()
        compiled = self.compile_stats.compilations()
        if compiled == self.compiled:
            self.times.append(ms)
        else:
            self.times, self.compiled = [], compiled
            self.settling = time.perf_counter()

    def _settled(self, now: float) -> bool:
        """Whether rounds begin, here."""
        from torchproof.records import stats

        steady = stats.steady(self.times)
        if not steady and (now - self.settling < _SETTLE_S or len(self.times) < 3):
            return False
        self.steps.fix()
        self._write_compiled()
        step_ms = self._step_ms()
        self.stream.write(
            "settled", steady=steady, steps=self.seen, calls=self.steps.calls
        )
        self.rounds = Rounds(self, length_of(step_ms), step_ms)
        return True

    def _start_over(self) -> None:
        """What a step is has changed: earlier ones do not compare."""
        if self.rounds is not None:
            self.rounds.leave()
            self.stream.write("start_over")
        self.rounds, self.begun, self.times = None, None, []

    # -- the end -------------------------------------------------------------------

    def end(self) -> None:
        """Of the script."""
        if self.rounds is not None:
            self.rounds.leave()
        self._write_compiled()
        self._tell(always=True)
        self.steps.detach()

    def _step_ms(self) -> float:
        return statistics.median(self.times[-max(3, len(self.times) // 3) :])

    def _needed(self) -> int:
        """Steps for a verdict, as far as the steps seen tell."""
        if self.rounds is not None:
            warm_up, length = self.rounds.begun_at, self.rounds.length
        else:
            step_ms = self._step_ms() if self.times else _WARMUP_MS
            length = length_of(step_ms)
            usual = max(_LEAST_WARMUP, math.ceil(_WARMUP_MS / step_ms))
            warm_up = self.seen - len(self.times) + usual
        return warm_up + len(ARMS) * FEWEST_ROUNDS * length

    def _tell(self, *, always: bool = False) -> None:
        if always or time.monotonic() - self.told > _TELL_S:
            self.told = time.monotonic()
            doing = self.rounds.doing() if self.rounds else "warming up"
            self.stream.write(
                "steps", seen=self.seen, needed=self._needed(), doing=doing
            )

    def _write_compiled(self) -> None:
        self.stream.write(
            "compiled",
            first_call_s=self.first_call_s,
            imports_s=self.imports_s,
            **self.compile_stats.since_reset(),
        )


def length_of(step_ms: float) -> int:
    """Steps of a round; its first one is left out, for a stance was changed there."""
    from torchproof.records import stats

    steps = math.ceil(stats.ROUND_MS / step_ms)
    return 1 + max(2, min(stats.ROUND_SAMPLES, steps))


class Rounds:
    """Rounds of both arms in turn; which goes first changes from pair to pair."""

    def __init__(self, owner: Alternation, length: int, step_ms: float) -> None:
        from torchproof.records import stats

        self.owner, self.length = owner, length
        self.begun_at = owner.seen
        fit = int(owner.job["seconds"] * 1e3 / (length * step_ms))
        self.fewest = math.ceil(_FEWEST_SAMPLES / (length - 1))
        self.most = max(stats.LEAST_ROUNDS, self.fewest, fit)
        self.taken: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
        self._stance: Any = None  # what was in force before eager steps
        self._begin()

    @property
    def _arm(self) -> str:
        turn, second = divmod(sum(map(len, self.taken.values())), 2)
        return ARMS[(turn + second) % 2]

    def doing(self) -> str:
        number = min(self.most, len(self.taken[self._arm]) + 1)
        return f"round {number} of at most {self.most}, {self._arm}"

    def _begin(self) -> None:
        self._go(eager=self._arm == "eager")
        self.compiled = self.owner.compile_stats.compilations()
        self.mark = _marker()
        self.marks, self.yields = [self.mark()], [profiling.context_switches()]

    def step_begins(self) -> bool:
        """False after the last round, and where the arms cannot be told apart."""
        self.marks.append(self.mark())
        self.yields.append(profiling.context_switches())
        if len(self.marks) <= self.length:
            return True
        if not self._in_force():
            self.owner.stream.write("refused")
            return False
        compilations = self.owner.compile_stats.compilations() - self.compiled
        if compilations:  # the round is taken again
            self.owner.stream.write("compiled_while_timed", count=compilations)
        else:
            self._keep()
        if self._enough():
            return False
        self._begin()
        return True

    def _keep(self) -> None:
        from torchproof.records import stats

        times = _between(self.marks)[1:]
        spoiled = [b > a for a, b in itertools.pairwise(self.yields)][1:]
        kept, arm = stats.kept(times, spoiled), self._arm
        self.taken[arm].append(kept)
        self.owner.stream.write(
            "round", arm=arm, times_ms=kept, steps=len(times), interrupted=sum(spoiled)
        )

    def _enough(self) -> bool:
        from torchproof.records import stats

        eager, compiled = self.taken.values()
        if len(eager) != len(compiled) or len(eager) < self.fewest:
            return False
        return len(eager) >= self.most or stats.enough(self.taken)

    # -- the stance ----------------------------------------------------------------

    def _go(self, *, eager: bool) -> None:
        import torch

        if eager and self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")
        elif not eager and self._stance is not None:
            if self._in_force():
                self._stance.__exit__(None, None, None)
            self._stance = None
        self.owner.steps.eager = eager

    def _in_force(self) -> bool:
        """Whether eager steps ran in eager: a script may set the stance itself."""
        from torchproof import torch_private

        return self._stance is None or torch_private.stance() == "force_eager"

    def leave(self) -> None:
        self._go(eager=False)


# -- clocks ----------------------------------------------------------------------------


def _cuda() -> Any:
    """torch.cuda where the script uses it, else None."""
    import torch

    cuda: Any = torch.cuda
    return cuda if cuda.is_initialized() else None


def _synchronise() -> None:
    if cuda := _cuda():
        cuda.synchronize()


def _capturing() -> bool:
    """Whether a CUDA graph is being recorded: nothing may be timed in there."""
    cuda = _cuda()
    return bool(cuda and cuda.is_current_stream_capturing())


def _marker() -> Callable[[], Any]:
    """Makes marks in time: device events on CUDA, so that steps overlap as written."""
    return _event if _cuda() else time.perf_counter


def _event() -> Any:
    event = _cuda().Event(enable_timing=True)
    event.record()
    return event


def _between(marks: Sequence[Any]) -> list[float]:
    """Milliseconds from mark to mark."""
    pairs = itertools.pairwise(marks)
    if isinstance(marks[0], float):
        return [(end - begin) * 1e3 for begin, end in pairs]
    marks[-1].synchronize()
    return [float(begin.elapsed_time(end)) for begin, end in pairs]


if __name__ == "__main__":
    parent_death.hold()
    sys.exit(main(sys.argv[1:]))
