"""The worker process of a script's benchmark: it alternates compiled and eager steps.

`script_bench` starts it with `python -m`, a job in JSON and the path of a stream. The
script runs once, as written. Its first steps run compiled until their times are steady.
Then it times rounds of a few steps, alternately compiled and with torch's stance
"force_eager", so that drift of the machine hits both alike. The stance changes only at
the begin of a step, so that forward and backward of a step match. After the last round
the script runs on undisturbed.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from torchproof.measure import profiling
from torchproof.measure.compile_stats import CompileStats
from torchproof.measure.replies import SampledRound
from torchproof.measure.script_bench import STRATEGIES, ScriptJob
from torchproof.observe import StepDetector, timeline
from torchproof.process import Stream, hold
from torchproof.records import Keywords, stats
from torchproof.targets import script
from torchproof.torch_private import describe

_FEWEST_SAMPLES = 20  # of each strategy, if the script runs that long
_WARM_UP_S = 20.0
_REPORT_S = 0.25
_LEAST_WARMUP, _WARMUP_MS = 6, 150.0  # required by `stats.steady`
_LEAST_LENGTH = 3  # steps of a round
_LEAST_TIMED = 3  # steps without compilation before the rounds


def main(arguments: list[str]) -> int:
    job, stream = ScriptJob.from_json(json.loads(arguments[0])), Stream()
    timeline.start("script")
    sampler = ScriptSampler(stream, job)
    script.when_imported("torch", sampler.attach)
    try:
        return script.run(job.run.target, stream)
    finally:
        sampler.end()
        stream.write("environment", **describe(job.run))


class ScriptSampler:
    """Warms up, then times rounds, as the script runs its steps."""

    def __init__(self, stream: Stream, job: ScriptJob) -> None:
        self.stream = stream
        self.job = job
        self.steps = StepDetector(self._step_begins, self._start_over)
        self.compile_stats = CompileStats()
        self.imports_s: float | None = None
        self.seen = 0  # steps that began
        self.times: list[float] = []  # of steps without compilation
        self.step_start: float | None = None
        self.first_call_s: float | None = None
        self.compiled = 0
        self.rounds: Rounds | None = None
        self.reported = 0.0

    def attach(self) -> None:
        self.steps.attach(self._prepare)

    def _prepare(self, arguments: Keywords) -> None:
        """Imports the compiler at the first torch.compile; starts its statistics."""
        if self.imports_s is not None:
            return
        inductor = arguments.get("backend") in {None, "inductor"}
        self.imports_s = self.compile_stats.open(inductor=inductor)
        if not inductor:
            from torchproof.torch_private import compile_costs

            if compile_costs.AUTOGRAD_CACHE_MODULE in sys.modules:
                self.compile_stats.watch_cache()
            else:  # its import brings Inductor's cache too
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
            self._report()
        else:
            self.rounds.leave()
            self.steps.detach()
            self._write_compiled()
            self.stream.write("measured", steps=self.seen)

    # -- warm-up -------------------------------------------------------------------

    def _warm_up(self) -> None:
        _synchronise()
        now = time.perf_counter()
        if self.step_start is None:
            self.stream.write("begun", environment=describe(self.job.run))
            self.warm_up_began = now
        else:
            self._step_ended((now - self.step_start) * 1e3)
        if self._is_warm(now):
            return
        self._report()
        self.step_start = time.perf_counter()

    def _step_ended(self, ms: float) -> None:
        if self.first_call_s is None:
            self.first_call_s = ms / 1e3
            self._write_compiled()
        compiled = self.compile_stats.compilations()
        if compiled == self.compiled:
            self.times.append(ms)
        else:
            self.times, self.compiled = [], compiled
            self.warm_up_began = time.perf_counter()

    def _is_warm(self, now: float) -> bool:
        """Ends the warm-up if the times are steady; returns whether rounds begin."""
        steady = stats.steady(self.times)
        if not steady and (
            now - self.warm_up_began < _WARM_UP_S or len(self.times) < _LEAST_TIMED
        ):
            return False
        self.steps.fix()
        self._write_compiled()
        step_ms = self._step_ms()
        self.stream.write(
            "warm", steady=steady, steps=self.seen, calls=self.steps.calls
        )
        self.rounds = Rounds(self, length_of(step_ms), step_ms)
        return True

    def _start_over(self) -> None:
        """Discards earlier steps: the calls that make up a step have changed."""
        if self.rounds is not None:
            self.rounds.leave()
            self.stream.write("start_over")
        self.rounds, self.step_start, self.times = None, None, []

    # -- the end of the script -----------------------------------------------------

    def end(self) -> None:
        """Writes the last entries when the script ends."""
        if self.rounds is not None:
            self.rounds.leave()
        self._write_compiled()
        self._report(always=True)
        self.steps.detach()

    def _step_ms(self) -> float:
        return statistics.median(self.times[-max(3, len(self.times) // 3) :])

    def _needed(self) -> int:
        """Estimates the number of steps for a verdict."""
        if self.rounds is not None:
            warm_up, length = self.rounds.first_step, self.rounds.length
        else:
            step_ms = self._step_ms() if self.times else _WARMUP_MS
            length = length_of(step_ms)
            usual = max(_LEAST_WARMUP, math.ceil(_WARMUP_MS / step_ms))
            warm_up = self.seen - len(self.times) + usual
        return warm_up + len(STRATEGIES) * stats.FEWEST_ROUNDS * length

    def _report(self, *, always: bool = False) -> None:
        if always or time.monotonic() - self.reported > _REPORT_S:
            self.reported = time.monotonic()
            doing = self.rounds.doing() if self.rounds else "warming up"
            self.stream.write(
                "steps", seen=self.seen, needed=self._needed(), doing=doing
            )

    def _write_compiled(self) -> None:
        facts = dataclasses.replace(
            self.compile_stats.since_reset(),
            first_call_s=self.first_call_s,
            imports_s=self.imports_s,
        )
        self.stream.write("compiled", **dataclasses.asdict(facts))


def length_of(step_ms: float) -> int:
    """Returns the steps of a round, with a first one that is dropped."""
    steps = math.ceil(stats.ROUND_MS / step_ms)
    return 1 + max(_LEAST_LENGTH - 1, min(stats.ROUND_SAMPLES, steps))


class Rounds:
    """Alternates rounds of both strategies; the order changes from pair to pair."""

    def __init__(self, owner: ScriptSampler, length: int, step_ms: float) -> None:
        self.owner = owner
        self.length = length
        self.first_step = owner.seen
        fit = int(owner.job.seconds * 1e3 / (length * step_ms))
        self.fewest = math.ceil(_FEWEST_SAMPLES / (length - 1))
        self.most = max(stats.LEAST_ROUNDS, self.fewest, fit)
        self.done: dict[str, list[SampledRound]] = {name: [] for name in STRATEGIES}
        self._stance: Any = None  # restores the stance from before eager steps
        self._begin()

    @property
    def _strategy(self) -> str:
        turn, second = divmod(sum(map(len, self.done.values())), 2)
        return STRATEGIES[(turn + second) % 2]

    def doing(self) -> str:
        number = min(self.most, len(self.done[self._strategy]) + 1)
        return f"round {number} of at most {self.most}, {self._strategy}"

    def _begin(self) -> None:
        self._go(eager=self._strategy == "eager")
        self.compiled = self.owner.compile_stats.compilations()
        self.mark = _marker()
        self.marks = [self.mark()]
        self.switches = [profiling.context_switches()]

    def step_begins(self) -> bool:
        """Returns False after the last round, or if the script changed the stance."""
        self.marks.append(self.mark())
        self.switches.append(profiling.context_switches())
        if len(self.marks) <= self.length:
            return True
        if not self._in_force():
            self.owner.stream.write("refused")
            return False
        compilations = self.owner.compile_stats.compilations() - self.compiled
        if compilations:  # repeat the round
            self.owner.stream.write("compiled_while_timed", count=compilations)
        else:
            self._keep()
        if self._enough():
            return False
        self._begin()
        return True

    def _keep(self) -> None:
        interrupted = [b > a for a, b in itertools.pairwise(self.switches)]
        sampled = SampledRound(tuple(_between(self.marks)[1:]), tuple(interrupted[1:]))
        strategy = self._strategy
        self.done[strategy].append(sampled)
        plain = dataclasses.asdict(sampled)
        self.owner.stream.write("round", strategy=strategy, sampled=plain)

    def _enough(self) -> bool:
        eager, compiled = map(len, self.done.values())
        if eager != compiled or eager < self.fewest:
            return False
        rounds = {name: [r.clean_ms for r in self.done[name]] for name in self.done}
        return eager >= self.most or stats.enough(rounds)

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
        """Whether eager steps ran in eager; a script may set the stance itself."""
        from torchproof import torch_private

        return self._stance is None or torch_private.stance() == "force_eager"

    def leave(self) -> None:
        self._go(eager=False)


# -- clocks ----------------------------------------------------------------------------


def _cuda() -> Any:
    """Returns torch.cuda if the script uses it, else None."""
    import torch

    cuda: Any = torch.cuda
    return cuda if cuda.is_initialized() else None


def _synchronise() -> None:
    if cuda := _cuda():
        cuda.synchronize()


def _capturing() -> bool:
    """Whether a CUDA graph is being captured, which allows no timing."""
    cuda = _cuda()
    return bool(cuda and cuda.is_current_stream_capturing())


def _marker() -> Callable[[], Any]:
    """Returns a clock: device events on CUDA, so that steps overlap as written."""
    return _event if _cuda() else time.perf_counter


def _event() -> Any:
    event = _cuda().Event(enable_timing=True)
    event.record()
    return event


def _between(marks: Sequence[Any]) -> list[float]:
    """Returns the milliseconds between successive marks."""
    pairs = itertools.pairwise(marks)
    if isinstance(marks[0], float):
        return [(end - begin) * 1e3 for begin, end in pairs]
    marks[-1].synchronize()
    return [float(begin.elapsed_time(end)) for begin, end in pairs]


if __name__ == "__main__":
    hold()
    sys.exit(main(sys.argv[1:]))
