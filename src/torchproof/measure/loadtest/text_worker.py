"""The process of one strategy that serves a text model.

It has the commands of `worker.LoadWorker`. The calls of a text model are the sizes to
which prompts are padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchproof.measure import profiling
from torchproof.measure.loadtest.load_job import LoadJob, ServedTarget, ServingReply
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.serving import serve
from torchproof.measure.loadtest.stalls import StallRecorder
from torchproof.measure.loadtest.text_model import TextGenerator
from torchproof.measure.loadtest.text_options import TextOptions
from torchproof.measure.loadtest.text_requests import shape_of, text_request
from torchproof.measure.loadtest.timetable import Timetable
from torchproof.targets import calls, end_tokens, text_model
from torchproof.torch_private import describe


class TextWorker:
    """Loads a text model, compiles prefill and decode, and serves timetables."""

    def __init__(self, job: LoadJob, options: TextOptions) -> None:
        self._job, self._options = job, options

    def prepare(self) -> ServedTarget:
        run = calls.resolved(self._job.run)
        model = text_model(calls.fresh(run))
        environment = describe(run)
        self._device = str(environment["device"])
        profiling.initialise_device(self._device)
        shape = shape_of(self._options, model.context)
        self._generator = TextGenerator(
            model, shape, temperature=self._options.temperature
        )
        self._generator.compile(self._job.served)
        return ServedTarget(
            calls=tuple(f"prompt padded to {size}" for size in shape.prompt_sizes),
            own_calls=len(shape.prompt_sizes),
            weights=(),  # the lengths of prompts decide
            start_s=profiling.process_age_s(),
            environment=environment,
            source=self._generator.compiled.source,
        )

    def answer_all(self) -> None:
        """Runs prefill with every size of a prompt, and decode, a few times."""
        self._generator.warm_up()

    def serve(self, timetable: dict[str, Any], log: str) -> ServingReply:
        """Serves a timetable; the requests are in the file of the log."""
        table = Timetable.from_json(timetable)
        requests = RequestLog(Path(log), len(table))
        model, seed = self._generator.model, self._job.seed
        ends = end_tokens(model)

        def answer(numbers: Sequence[int]) -> None:
            [number] = numbers
            requests.tokens[number] = 0

            def first_token() -> None:
                requests.first_token[number] = requests.elapsed_s

            request = text_request(
                number, table, vocabulary=model.vocabulary, seed=seed
            )
            tokens = self._generator.generate(
                request, end_tokens=ends, first_token=first_token
            )
            requests.tokens[number] = len(tokens)

        with StallRecorder() as recorder:
            served = serve(
                answer,
                table,
                requests,
                queue_limit=self._options.queue_limit,
                observer=recorder,
            )
        return ServingReply(
            errors=served.errors,
            stalls=recorder.stalls(served.origin),
            missing=recorder.missing,
            peak_bytes=profiling.peak_bytes(self._device),
        )
