"""A package that answers calls as the model did, without the model's Python code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchproof.runtime.loading import pytree_json
from torchproof.runtime.loading.input_spec import InputSpec
from torchproof.runtime.loading.pytree_json import Unfit

Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class DeployedModel:
    """Called as the model is; for inference only.

    A call of another form, type, device or size than the package was made for raises
    `ValueError` with what differs.
    """

    def __init__(self, details: Mapping[str, Any], run: Run) -> None:
        self.details = details
        self._signature = pytree_json.signature_from(details["call"]["parameters"])
        self._arguments = dict(details["call"]["arguments"])
        self._input_spec = InputSpec.from_json(details["entrance"])
        self._output = details["output"]
        self._run = run

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        given = self._tensors(args, kwargs)
        try:
            admitted = self._input_spec.admit(given)
        except Unfit as error:
            raise ValueError(f"the pack refuses this call: {error}") from None
        with torch.no_grad():
            answer = list(self._run(admitted))
            for tensor, used, spec in zip(
                given, admitted, self._input_spec.tensors, strict=True
            ):
                if spec.written and used.data_ptr() != tensor.data_ptr():
                    tensor.copy_(used)
        return pytree_json.rebuild(self._output, answer)

    def _tensors(self, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call, which is of the form that was packed."""
        given = pytree_json.arguments_of(self._signature, args, kwargs)
        ours: list[torch.Tensor] = []
        packed = {"dict": list(self._arguments.items())}
        try:
            for name in {**self._arguments, **given}:
                if name not in given:
                    raise Unfit(f"{name} is missing; the package was made with it")
                if name not in self._arguments:
                    raise Unfit(f"{name} is given; the package was made without it")
            named = [(k, pytree_json.flatten(v, ours, k)) for k, v in given.items()]
            for name, form in named:
                told = pytree_json.difference(form, self._arguments[name], name)
                if told is not None:
                    raise Unfit(told)
        except Unfit as error:
            raise ValueError(f"the pack refuses this call: {error}") from None
        return list(pytree_json.in_packed_order({"dict": named}, packed, ours))

    def __repr__(self) -> str:
        taken = ", ".join(
            f"{t.label}: {t.dtype}{list(t.sizes)}" for t in self._input_spec.tensors
        )
        return f"<torchproof {self.details['artifact']} package ({taken})>"
