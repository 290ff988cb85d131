"""The child process of one arm: a target under one strategy, measured when told.

`worker_process` starts it as `python -m` with a job, which is JSON. Commands come in
on stdin, one JSON object a line; each is answered by one line on the job's
descriptor, so that nothing the target prints can be taken for an answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import json
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchproof.measure import guard_filters, numerics, profiling
from torchproof.measure.compile_stats import Ledger
from torchproof.observe import Anatomy
from torchproof.records import UserError, stats, whose
from torchproof.strategies import NotApplicable, Strategy
from torchproof.targets import Loaded, Target, calls
from torchproof.torch_private import describe

if TYPE_CHECKING:
    from torchproof.strategies import Applied

_WATCHED_PASSES = 11
_RESUME_S = {"cpu": 0.01, "cuda": 0.2}


def main(arguments: list[str]) -> int:
    job = json.loads(arguments[0])
    replies = os.fdopen(job["replies"], "w", encoding="utf-8")
    arm = Arm(job)
    for line in sys.stdin:
        command = json.loads(line)
        answer = _answer(arm, command.pop("do"), command)
        replies.write(json.dumps(answer, default=str) + "\n")
        replies.flush()
    return 0


def _answer(arm: Arm, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """The command's answer, or in words why there is none."""
    try:
        return {"ok": True, **getattr(arm, name)(**values)}
    except UserError as error:
        skips = isinstance(error, NotApplicable)
        return {"ok": False, "error": str(error), "usage": True, "skips": skips}
    except Exception as error:
        told = traceback.format_exception_only(error)[-1].strip()
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if whose(f.filename) in {"user", "library"}]
        if own:
            told = f"{own[-1].filename}:{own[-1].lineno}: {told}"
        return {"ok": False, "error": told, "usage": False}


class Arm:
    """A target made anew, a strategy applied to it, and what is asked about them."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        if told := job.get("target"):
            self.target = Target(**{**told, "arguments": tuple(told["arguments"])})
        self.strategy = Strategy.from_json(job["strategy"])
        calls.compare_at_most(job.get("compared_elements"))
        self.references: dict[int, numerics.Reference] = {}
        self.ledger = Ledger()
        self.dropped: Counter[str] = Counter()  # guards that are not checked
        self.anatomy: Anatomy | None = None
        self.hooks = contextlib.ExitStack()
        self.applied: Applied | None = None

    # -- commands ------------------------------------------------------------------

    def load(self) -> dict[str, Any]:
        """Imports what the target needs, by making one that is thrown away."""
        self._made({})
        gc.collect()
        profiling.give_back()
        return {}

    def become(
        self, job: dict[str, Any], environment: dict[str, str]
    ) -> dict[str, Any]:
        """The arm of this job, after all."""
        os.environ.update(environment)
        self.__init__(job)  # type: ignore[misc]
        return {}

    def switches(self) -> dict[str, Any]:
        from torchproof.torch_private import compile_costs

        return {"switches": compile_costs.inductor_defaults()}

    def refer(self, number: int, shape: dict[str, int]) -> dict[str, Any]:
        """Eager's answers in working precision and in float64, kept to judge others."""
        import torch

        from torchproof import torch_private

        self._load(shape)
        fn = self.loaded.fn
        compiled = torch_private.is_compiled(fn) or calls.claims(fn, "compiles_itself")
        before = {name: b.clone() for name, b in calls.buffers(fn)}
        with torch.compiler.set_stance("force_eager"):  # may fail: its own fault
            once, twice = (
                calls.answers(self.loaded, fn, train=self.train) for _ in range(2)
            )
        self.references[number] = numerics.reference(
            lambda: self._made(shape),
            lambda made: calls.answers(made, made.fn, train=self.train),
        )
        return {
            "draws": self.references[number].draws,
            "not_exact": self.references[number].why,
            "stateful": any(
                not torch.equal(b, before[name]) for name, b in calls.buffers(fn)
            ),
            "repeats": numerics.judge(twice, once).verdict in {"same", "rounding"},
            "work": calls.amount(self.loaded),
            "host_copies": calls.host_copies(self.loaded),
            "environment": describe(self.job),
            "compiled": compiled,
            "function": dataclasses.astuple(calls.function_of(self.loaded))[:3],
        }

    def judge(self, number: int, path: str) -> dict[str, Any]:
        """What an arm answered, against the reference."""
        import torch

        found = torch.load(path, weights_only=False)
        return {"numerics": self.references[number].judge(found).to_json()}

    def prepare(self, answers: str | None) -> dict[str, Any]:
        """The strategy applied, the first call timed, the answers saved."""
        from torchproof.torch_private import compile_costs

        plan = self._plan()
        if self.job["anatomy"] and self.strategy.compiles:
            self.anatomy = self.hooks.enter_context(Anatomy())
        self._load({})
        profiling.wake(self.device)
        told: dict[str, Any] = {"source": "", "notes": []}
        told["imports_s"] = self.ledger.open() if self.strategy.compiles else 0.0
        told["switches"] = compile_costs.changed_switches()
        told["compiled_before"] = self.ledger.compilations()
        self.fn = self.loaded.fn
        if not self.job["as_written"]:
            self._filter_guards()
            begin, target = time.perf_counter(), self.loaded
            self.applied = self.strategy.apply(
                target.fn, target.calls, plan, train=self.train
            )
            applying_s = time.perf_counter() - begin
            self.fn, told["source"] = self.applied.fn, self.applied.source
            self.hooks.enter_context(self.applied.recording_compilations())
            told["notes"] += [note for note in [self.applied.note] if note]
            told["plan"] = self.applied.plan.to_json()
        told |= self._first_pass(answers)
        if self.strategy.graph:  # compiled and recorded before it is called
            told["first_call_s"] += applying_s
        return told

    def _filter_guards(self) -> None:
        method = self.job["guards"]
        if method and method != guard_filters.STANCE:
            self.strategy = guard_filters.filtered(self.strategy, method)
            self.dropped = self.hooks.enter_context(guard_filters.dropped(method))

    def _not_checked(self) -> dict[str, int] | str:
        """The guards left out, by type; in words where torch does not list them."""
        words = guard_filters.METHODS[guard_filters.STANCE]
        return words if self.job["guards"] == guard_filters.STANCE else {**self.dropped}

    def reshape(self, shape: dict[str, int], answers: str | None) -> dict[str, Any]:
        """The same target and compiled code, with the calls of another shape."""
        self.ledger.look_anew()
        self._load(shape)
        return {"imports_s": 0.0} | self._first_pass(answers)

    def _first_pass(self, answers: str | None) -> dict[str, Any]:
        first: list[float] = []
        compiled: list[dict[str, float] | None] = []

        def step(index: int, call: Any) -> Any:
            if index:
                return self._invoke(call)
            kept: list[Any] = []
            first.append(self.clock.seconds(lambda: kept.append(self._invoke(call))))
            compiled.append(self.ledger.page()["compile_s"])
            return kept[0]

        self._save(answers, self.loaded, self.fn, step)
        return {
            "fell_back": self._fell_back(),
            "first_call_s": first[0],
            "first_compile_s": compiled[0],
            "numerics": None,
            "bytes": profiling.held(self.device),
            **self.ledger.page(),
        }

    def settle(self, within_s: float = stats.SETTLE_S) -> dict[str, Any]:
        """Passes until the times are steady and nothing compiles any more."""
        if self.job["guards"] == guard_filters.STANCE:
            import torch

            self._pass()  # every guard is checked once more before they are skipped
            torch.compiler.set_stance(skip_guard_eval_unsafe=True)
        times: list[float] = []
        begin, compiled = time.monotonic(), self.ledger.compilations()
        while True:
            times.append(self._pass())
            if self.ledger.compilations() != compiled:
                times, compiled = [], self.ledger.compilations()
            if steady := stats.steady(times):
                break
            if time.monotonic() - begin > within_s and len(times) > 2:
                break
        gc.collect()
        gc.freeze()  # what stays for good need not be gone through before each round
        return {"passes": len(times), "steady": steady, "pass_ms": times[-1]}

    def probe(self) -> dict[str, Any]:
        """Cheap facts about the target in eager, for whoever searches."""
        from torchproof.measure import model_facts

        subject = model_facts.Subject(
            self.loaded, self.device, self._pass, lambda: self._made({})
        )
        return {"probe": model_facts.probe(subject)}

    def sample(self, seconds: float) -> dict[str, Any]:
        """One round: passes for a while; garbage is collected before, not within."""
        before = self.ledger.compilations()
        gc.collect()
        gc.disable()
        try:
            self._resume()
            times, yields = self.timed(seconds)
        finally:
            gc.enable()
        return {
            "times_ms": times,
            "interrupted": [b > a for a, b in itertools.pairwise(yields)],
            "compilations": self.ledger.compilations() - before,
        }

    def timed(self, seconds: float) -> tuple[list[float], list[int]]:
        """Times per call, and how often the core was yielded before and after each."""
        return profiling.timed(self._pass, len(self.loaded.calls), seconds)

    def _resume(self) -> None:
        """Passes that are not counted: while others ran, cores and caches cooled.

        On an H200's host a launch-bound step takes twice its time at first, for 0.1 s.
        """
        end = time.monotonic() + _RESUME_S[self.device]
        while time.monotonic() < end:
            self._pass()

    def answer(self, answers: str) -> dict[str, Any]:
        """The answers of a pass after those that were timed, saved."""
        self._save(answers, self.loaded, self.fn)
        return {}

    def examine(self, trace: str | None = None) -> dict[str, Any]:
        """Memory, guards and kernels, apart from all timing."""
        memory = profiling.peak_memory(self.device, self._pass)
        profile = profiling.profile(
            self.device,
            self._pass,
            calls=len(self.loaded.calls),
            trace=Path(trace) if trace else None,
        )
        told = {"dropped": self._not_checked(), "sharing": [], **self.ledger.page()}
        if self.applied and self.applied.regions:
            from torchproof.measure import shared_code

            blocks = {site.name: len(site.paths) for site in self.applied.regions}
            shared = shared_code.artifacts(self.applied)
            told["counts"] |= {"artifacts_of": shared, "blocks_of": blocks}
            told["sharing"] = shared_code.sharing(self.applied)
        told |= {"anatomy": self._dissected(), "fell_back": self._fell_back()}
        return {"memory": memory, "profile": profile, **told}

    def _dissected(self) -> dict[str, Any] | None:
        if self.anatomy is None:
            return None
        with self.anatomy.watching():
            for _ in range(_WATCHED_PASSES):
                for index, call in enumerate(self.loaded.calls):
                    calls.before(self.loaded, index)
                    if self.train:
                        calls.forget_gradients(self.loaded.fn, call)
                    with self.anatomy.call(index):
                        self._invoke(call)
        return self.anatomy.to_json()

    def diagnose(self, wrong: bool) -> dict[str, Any]:
        """Why compiled answers differ from eager's, as events."""
        from torchproof.measure import diagnosis

        found = diagnosis.diagnose(self.target, self.job, wrong=wrong)
        return {"events": [dataclasses.asdict(event) for event in found]}

    def draw_as_eager(self, answers: str) -> dict[str, Any]:
        """The answers again, compiled to draw random numbers as eager does."""
        import torch

        from torchproof.torch_private import compile_costs

        torch.compiler.reset()
        with compile_costs.as_eager_draws():
            loaded, plan = self._made({}), self._plan()
            fn, given = loaded.fn, loaded.calls
            if not self.job["as_written"]:
                fn = self.strategy.apply(fn, given, plan, train=self.train).fn
            self._save(answers, loaded, fn)
        return {}

    # -- the target ----------------------------------------------------------------

    def _plan(self) -> Any:
        """What the strategy compiles, found on a target that is thrown away."""
        if self.job["as_written"] or not self.strategy.observes:
            return None
        loaded = self._made({})
        if self.strategy.compiles:
            self.ledger.open()  # or planning would import a part of it, unnoticed
        before = functools.partial(calls.before, loaded)
        return self.strategy.plan(loaded.fn, loaded.calls, before)

    def _made(self, shape: dict[str, int]) -> Loaded:
        """A target made anew; another shape gives other calls of the same target."""
        loaded = calls.fresh(self.target, self.job)
        if shape.items() <= self.job.items():
            return loaded
        swept = {"batch", "sequence"}  # the first shape's, which is not the default
        plain = {k: v for k, v in self.job.items() if k not in swept}
        other = calls.fresh(self.target, plain | shape)
        return dataclasses.replace(loaded, calls=other.calls)

    def _load(self, shape: dict[str, int]) -> None:
        made = self._made(shape)
        known = getattr(self, "loaded", None)
        self.loaded = dataclasses.replace(made, fn=known.fn) if known else made
        self.train = calls.trains(self.loaded, self.job)
        self.device = str(describe(self.job)["device"])
        self.clock = profiling.Clock(self.device)

    @property
    def _backward(self) -> bool:
        """Whether a backward is to follow what is called."""
        return self.train and not (self.applied and self.applied.whole_step)

    def _fell_back(self) -> list[str]:
        """Why a strategy with a graph did not replay one."""
        return list(self.applied.falls_back) if self.applied else []

    def _save(self, path: str | None, made: Loaded, fn: Any, step: Any = None) -> None:
        """The answers of one pass, left where they are asked for."""
        import torch

        found = calls.answers(
            made, fn, train=self.train, backward=self._backward, step=step
        )
        if path is not None:
            torch.save(found, path)

    def _invoke(self, call: Any) -> Any:
        return calls.invoke(self.fn, call, train=self._backward)

    def _pass(self) -> float:
        """All calls in order, each timed alone; their sum in milliseconds."""
        total, loaded, fn, train = 0.0, self.loaded, self.fn, self.train
        backward = self._backward
        for index, call in enumerate(loaded.calls):
            if loaded.before_call is not None:
                calls.before(loaded, index)
            if train:
                calls.forget_gradients(loaded.fn, call)
            step = functools.partial(calls.invoke, fn, call, train=backward)
            total += self.clock.milliseconds(step)
        return total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
