"""Serves a text model, one request at a time.

`TextGenerator` calls `prefill` and `decode` of the model, as a strategy compiled them,
and samples tokens from their logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from torchproof import strategies
from torchproof.measure import profiling
from torchproof.measure.loadtest import served_strategy
from torchproof.measure.loadtest.load_job import LoadJob, ServedTarget
from torchproof.measure.loadtest.request_log import RequestLog
from torchproof.measure.loadtest.served_strategy import (
    COMPILE,
    NOWAIT,
    PACK,
    ServedStrategy,
)
from torchproof.measure.loadtest.serving import Answer
from torchproof.measure.loadtest.text import (
    TextRequest,
    TextShape,
    shape_of,
    text_request,
)
from torchproof.strategies import NotApplicable
from torchproof.targets import Job, TextModel, calls, end_tokens, text_model
from torchproof.torch_private import describe

Call = tuple[Tensor, ...]


class TextGenerator:
    """A text model with a cache for one request.

    Tokens and positions stay on the device. Only the sampled token comes back after
    each step, because that is when a server can send it.
    """

    def __init__(
        self,
        model: TextModel,
        shape: TextShape,
        *,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.model, self.shape = model, shape
        self._temperature, self._seed = temperature, seed
        self._device = device_of(model)
        model.allocate(1, shape.length)
        self.prefill: Callable[..., Tensor] = model.prefill
        self.decode: Callable[..., Tensor] = model.decode
        self.source = ""  # the lines that compiled them

    @torch.no_grad()
    def compile(self, served: ServedStrategy) -> None:
        """Compiles prefill and decode separately; nothing runs compiled yet.

        With a CUDA graph, only decode is recorded. Its shapes never change, and it
        launches as many kernels as prefill for far less work.
        """
        model = self.model
        if served.strategy is not None and served.strategy.form == "core":
            # `core:decode` compiles decode alone, and `core:prefill` prefill.
            applied = strategies.apply(served.strategy, model, [])  # type: ignore[arg-type]
            self.prefill, self.decode = model.prefill, model.decode
            self.source = applied.source
            return
        if served.in_graph is not None and served.in_graph.form == "core":
            raise NotApplicable(
                "of text models, eager+graph or full+graph record decode"
            )
        if served.name.startswith(f"{PACK}:"):
            raise NotApplicable("a pack does not contain prefill and decode")
        before = _for_prefill(served)
        prefill = served_strategy.apply(before, model.prefill, self._prefill_calls())
        decode = served_strategy.apply(served, model.decode, self._decode_calls())
        self.prefill, self.decode = prefill.fn, decode.fn
        self.source = decode.source
        if before.name != served.name:
            self.source = f"# decode\n{decode.source}\n\n# prefill\n{prefill.source}"

    @torch.no_grad()
    def warm_up(self) -> None:
        """Calls prefill with every size of a prompt, and decode."""
        for call in self._prefill_calls():
            self.prefill(*call).argmax(-1).tolist()
        for call in self._decode_calls():
            self.decode(*call).argmax(-1).tolist()

    def answers(self, log: RequestLog) -> Answer:
        """Generates the text of a request, and notes when its tokens come."""
        model, seed = self.model, self._seed
        ends = end_tokens(model)

        def answer(numbers: Sequence[int]) -> None:
            [number] = numbers
            log.tokens[number] = 0

            def first_token() -> None:
                log.first_token[number] = log.elapsed_s

            request = text_request(
                number, log.timetable, vocabulary=model.vocabulary, seed=seed
            )
            tokens = self.generate(request, end_tokens=ends, first_token=first_token)
            log.tokens[number] = len(tokens)

        return answer

    @torch.no_grad()
    def generate(
        self,
        request: TextRequest,
        *,
        end_tokens: frozenset[int] = frozenset(),
        first_token: Callable[[], None] = lambda: None,
    ) -> list[int]:
        """The tokens of an answer; `first_token` is called when there is one."""
        count = len(request.prompt)
        size = self.shape.prompt_sizes[self.shape.size_of(count)]
        padded = torch.zeros((1, size), dtype=torch.int64)
        padded[0, :count] = torch.from_numpy(request.prompt)
        position = self._zeros(1) + count
        logits = self.prefill(padded.to(self._device), position, self._zeros(1))
        tokens: list[int] = []
        while True:
            token = self._sample(logits, float(request.chances[len(tokens)]))
            tokens.append(int(token.item()))
            if len(tokens) == 1:
                first_token()
            if len(tokens) == len(request.chances) or tokens[-1] in end_tokens:
                return tokens
            logits = self.decode(token[:, None], position)
            position = position + 1

    def _sample(self, logits: Tensor, chance: float) -> Tensor:
        if not self._temperature:
            return logits.argmax(-1)
        at = torch.tensor([chance], dtype=torch.float32, device=logits.device)
        return sample(logits, at, self._temperature)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self._device)

    def _prefill_calls(self) -> list[Call]:
        return [
            (self._zeros(1, size), self._zeros(1) + size, self._zeros(1))
            for size in self.shape.prompt_sizes
        ]

    def _decode_calls(self) -> list[Call]:
        return [(self._zeros(1, 1), self._zeros(1))]


def sample(logits: Tensor, chance: Tensor, temperature: float) -> Tensor:
    """The token at which the cumulated probabilities exceed `chance`, for each row."""
    probabilities = torch.softmax(logits.float() / temperature, -1)
    cumulated = probabilities.cumsum(-1)
    # Rounding may leave the sum below 1.
    limit = (chance * cumulated[:, -1])[:, None]
    token = torch.searchsorted(cumulated, limit, right=True)[:, 0]
    return token.clamp(max=logits.shape[-1] - 1)


def device_of(model: TextModel) -> torch.device:
    """Where the tensors of a text model are: at its weights, or as it says."""
    if isinstance(model, nn.Module):
        for parameter in model.parameters():
            return parameter.device
    return torch.device(getattr(model, "device", "cpu"))


def _for_prefill(served: ServedStrategy) -> ServedStrategy:
    """The strategy without the CUDA graph, which waits for the compiler or does not."""
    if not served.on_cuda:
        return served
    if served.in_graph is None or served.name.endswith(f":{NOWAIT}"):
        return served_strategy.named(f"{COMPILE}:{NOWAIT}")
    return ServedStrategy(served.in_graph.name, served.in_graph)


def prepared(job: LoadJob, run: Job) -> tuple[TextGenerator, ServedTarget]:
    """Loads a text model and compiles it; its calls are the sizes of prompts."""
    options = job.options.text
    assert options is not None
    model = text_model(calls.fresh(run))
    environment = describe(run)
    profiling.initialise_device(str(environment["device"]))
    shape = shape_of(options, model.context)
    generator = TextGenerator(
        model, shape, temperature=options.temperature, seed=job.options.seed
    )
    generator.compile(job.served)
    return generator, ServedTarget(
        calls=tuple(f"prompt padded to {size}" for size in shape.prompt_sizes),
        weights=(),  # the lengths of prompts decide
        start_s=profiling.process_age_s(),
        environment=environment,
        source=generator.source,
    )
