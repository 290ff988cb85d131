"""The slots of a text model on its device: prompts go in, tokens come out.

`TextSlots` calls `prefill` and `decode` of a text model, as a strategy compiled them,
and samples tokens from their logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchproof.measure.loadtest import served_strategy
from torchproof.measure.loadtest.served_strategy import (
    COMPILE,
    NOWAIT,
    PACK,
    ServedStrategy,
)
from torchproof.measure.loadtest.text_requests import TextRequest, TextShape
from torchproof.strategies import NotApplicable, Strategy
from torchproof.targets import TextModel

Call = tuple[Tensor, ...]


@dataclass(frozen=True)
class Compiled:
    """The two functions of a text model under a strategy."""

    prefill: Callable[..., Tensor]
    decode: Callable[..., Tensor]
    source: str = ""  # the lines that compiled them


class TextSlots:
    """A text model with a cache of `slots` rows.

    Tokens and positions stay on the device. Only the sampled tokens come back, once a
    step, because that is when a server can send them.
    """

    def __init__(
        self,
        model: TextModel,
        shape: TextShape,
        *,
        slots: int,
        temperature: float = 0.0,
    ) -> None:
        self.model, self.shape, self.count = model, shape, slots
        self._temperature = temperature
        self._device = device_of(model)
        model.allocate(slots, shape.length)
        self._tokens = self._zeros(slots, 1)
        self._positions = self._zeros(slots)
        self._occupied = self._zeros(slots)  # 1 or 0
        self._chances: dict[int, Any] = {}
        self.compiled = Compiled(model.prefill, model.decode)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64, device=self._device)

    def compile(self, served: ServedStrategy) -> None:
        """Compiles prefill and decode separately; nothing runs compiled yet."""
        self.compiled = compiled(
            served, self.model, self._prefill_calls(), self._decode_calls()
        )

    def warm_up(self) -> None:
        """Calls prefill with every size of a prompt, and decode, a few times."""
        with torch.no_grad():
            for _ in range(3):
                for call in self._prefill_calls():
                    self.compiled.prefill(*call).argmax(-1).tolist()
                for call in self._decode_calls():
                    self.compiled.decode(*call).argmax(-1).tolist()

    def _prefill_calls(self) -> list[Call]:
        return [
            (self._zeros(1, size), self._zeros(1) + size, self._zeros(1))
            for size in self.shape.prompt_sizes
        ]

    def _decode_calls(self) -> list[Call]:
        return [(self._zeros(self.count, 1), self._zeros(self.count))]

    @torch.no_grad()
    def fill(self, slot: int, request: TextRequest) -> int:
        """Puts a prompt into a slot; returns the first token of the answer."""
        count = len(request.prompt)
        size = self.shape.prompt_sizes[self.shape.size_of(count)]
        padded = torch.zeros((1, size), dtype=torch.int64)
        padded[0, :count] = torch.from_numpy(request.prompt)
        length, row = (self._zeros(1) + number for number in (count, slot))
        logits = self.compiled.prefill(padded.to(self._device), length, row)
        if self._temperature:
            self._chances[slot] = request.chances()
        token = self._sample(logits, {0: self._chance(slot, 0)})
        self._tokens[slot] = token
        self._positions[slot] = count
        self._occupied[slot] = 1
        return int(token.item())

    @torch.no_grad()
    def step(self, numbers: Mapping[int, int]) -> list[int]:
        """Adds a token to every slot; returns the next token of each.

        `numbers` has, by slot, how many tokens its answer has so far. Other slots are
        free: they compute with every step, and their tokens mean nothing.
        """
        logits = self.compiled.decode(self._tokens, self._positions)
        chances = {slot: self._chance(slot, number) for slot, number in numbers.items()}
        token = self._sample(logits, chances)
        self._tokens = token[:, None]
        self._positions += self._occupied
        tokens: list[int] = token.tolist()
        return tokens

    def free(self, slot: int) -> None:
        """Ends the answer in a slot. It computes on at position 0, within the cache."""
        self._chances.pop(slot, None)
        self._positions[slot] = self._occupied[slot] = 0

    def _chance(self, slot: int, number: int) -> float:
        return float(self._chances[slot][number]) if self._temperature else 0.0

    def _sample(self, logits: Tensor, chances: Mapping[int, float]) -> Tensor:
        if not self._temperature:
            return logits.argmax(-1)
        rows = [chances.get(row, 0.0) for row in range(len(logits))]
        chance = torch.tensor(rows, dtype=torch.float32, device=logits.device)
        return sample(logits, chance, self._temperature)


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


def compiled(
    served: ServedStrategy,
    model: TextModel,
    prefill_calls: list[Call],
    decode_calls: list[Call],
) -> Compiled:
    """Applies a strategy to prefill and to decode.

    With a CUDA graph, only decode is recorded. Its shapes never change, and it launches
    as many kernels as prefill for far less work.
    """
    if served.as_written:
        return Compiled(model.prefill, model.decode)
    if served.strategy is not None and served.strategy.form == "core":
        return _compiled_method(served.strategy, model)
    if served.in_graph is not None and served.in_graph.form == "core":
        raise NotApplicable("of text models, eager+graph or full+graph record decode")
    if served.name.startswith(f"{PACK}:"):
        raise NotApplicable("a pack does not contain prefill and decode")
    before = _for_prefill(served)
    prefill, prefill_source = _compiled_function(before, model.prefill, prefill_calls)
    decode, source = _compiled_function(served, model.decode, decode_calls)
    if before.name != served.name:
        source = f"# decode\n{source}\n\n# prefill\n{prefill_source}"
    return Compiled(prefill, decode, source)


def _for_prefill(served: ServedStrategy) -> ServedStrategy:
    """The strategy without the CUDA graph, which waits for the compiler or does not."""
    if not served.on_cuda:
        return served
    if served.in_graph is None or served.name.endswith(f":{NOWAIT}"):
        return served_strategy.named(f"{COMPILE}:{NOWAIT}")
    return ServedStrategy(served.in_graph.name, served.in_graph)


def _compiled_function(
    served: ServedStrategy, fn: Callable[..., Tensor], calls: list[Call]
) -> tuple[Callable[..., Tensor], str]:
    if served.strategy is None:
        return served_strategy.apply(served, fn, calls), served.lines
    with torch.no_grad():
        applied = served.strategy.apply(fn, calls)
    return applied.fn, applied.source


def _compiled_method(strategy: Strategy, model: TextModel) -> Compiled:
    """`core:decode` compiles decode alone, and `core:prefill` prefill."""
    applied = strategy.apply(model, [])  # type: ignore[arg-type]
    return Compiled(model.prefill, model.decode, applied.source)
