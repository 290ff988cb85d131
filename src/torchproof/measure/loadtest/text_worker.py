"""The process of one strategy that serves a text model.

It has the commands of `worker.LoadWorker`. The calls of a text model are the sizes to
which prompts are padded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchproof.measure import profiling
from torchproof.measure.loadtest.generation import TextSource, serve_generation
from torchproof.measure.loadtest.load_job import LoadJob, Prepared, ServedTimetable
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.stalls import StallRecorder
from torchproof.measure.loadtest.text_options import TextOptions
from torchproof.measure.loadtest.text_requests import (
    TextRequest,
    shape_of,
    text_request,
)
from torchproof.measure.loadtest.text_slots import TextSlots
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.targets import calls, end_tokens, text_model
from torchproof.torch_private import describe


class TextWorker:
    """Loads a text model, compiles prefill and decode, and serves timetables."""

    def __init__(self, job: LoadJob, options: TextOptions) -> None:
        self._job, self._options = job, options

    def prepare(self) -> Prepared:
        run = calls.resolved(self._job.run)
        model = text_model(calls.fresh(run))
        environment = describe(run)
        self._device = str(environment["device"])
        profiling.initialise_device(self._device)
        shape = shape_of(self._options, model.context)
        self._slots = TextSlots(
            model,
            shape,
            slots=self._options.slots,
            temperature=self._options.temperature,
        )
        self._slots.compile(self._job.served)
        return Prepared(
            calls=tuple(f"prompt padded to {size}" for size in shape.prompt_sizes),
            own_calls=len(shape.prompt_sizes),
            weights=(),  # the lengths of prompts decide
            start_s=profiling.process_age_s(),
            environment=environment,
            source=self._slots.compiled.source,
        )

    def answer_all(self) -> None:
        """Runs prefill with every size of a prompt, and decode, a few times."""
        self._slots.warm_up()

    def serve(self, timetable: dict[str, Any], log: str) -> ServedTimetable:
        """Serves a timetable; the requests are in the file of the log."""
        table = Timetable.from_json(timetable)
        vocabulary, seed = self._slots.model.vocabulary, self._job.seed

        def request(number: int) -> TextRequest:
            return text_request(number, table, vocabulary=vocabulary, seed=seed)

        source = TextSource(
            request,
            queue_limit=self._options.queue_limit,
            end_tokens=end_tokens(self._slots.model),
        )
        with StallRecorder() as recorder:
            served = serve_generation(
                self._slots,
                source,
                table,
                RequestLog(Path(log), len(table)),
                observer=recorder,
            )
        return ServedTimetable(
            errors=served.errors,
            stalls=recorder.stalls(served.origin),
            missing=recorder.missing,
            peak_bytes=profiling.peak_bytes(self._device),
        )
