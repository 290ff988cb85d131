"""A packaged model that runs without the model's Python code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchproof.runtime.loading import pytree_json
from torchproof.runtime.loading.input_spec import InputSpec
from torchproof.runtime.loading.pytree_json import Unfit

Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class DeployedModel:
    """Takes the same calls as the model, for inference only.

    A call whose structure, dtypes, devices or sizes the package does not support raises
    `ValueError` with the difference.
    """

    def __init__(self, details: Mapping[str, Any], run: Run) -> None:
        self.details = details
        self._signature = pytree_json.signature_from(details["call"]["parameters"])
        self._arguments = dict(details["call"]["arguments"])
        self._input_spec = InputSpec.from_json(details["entrance"])
        self._output = details["output"]
        self._run = run

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        tensors = self._tensors(args, kwargs)
        try:
            admitted = self._input_spec.admit(tensors)
        except Unfit as error:
            raise ValueError(f"the pack refuses this call: {error}") from None
        with torch.no_grad():
            outputs = list(self._run(admitted))
            for tensor, used, spec in zip(
                tensors, admitted, self._input_spec.tensors, strict=True
            ):
                if spec.written and used.data_ptr() != tensor.data_ptr():
                    tensor.copy_(used)
        return pytree_json.rebuild(self._output, outputs)

    def _tensors(self, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call, in packed order."""
        arguments = pytree_json.arguments_of(self._signature, args, kwargs)
        tensors: list[torch.Tensor] = []
        packed = {"dict": list(self._arguments.items())}
        try:
            for name in {**self._arguments, **arguments}:
                if name not in arguments:
                    raise Unfit(f"{name} is missing; the package was built with it")
                if name not in self._arguments:
                    raise Unfit(
                        f"{name} is not supported; the package was built without it"
                    )
            specs = [
                (name, pytree_json.flatten(value, tensors, name))
                for name, value in arguments.items()
            ]
            for name, spec in specs:
                reason = pytree_json.difference(spec, self._arguments[name], name)
                if reason is not None:
                    raise Unfit(reason)
        except Unfit as error:
            raise ValueError(f"the pack refuses this call: {error}") from None
        return list(pytree_json.in_packed_order({"dict": specs}, packed, tensors))

    def __repr__(self) -> str:
        inputs = ", ".join(
            f"{t.label}: {t.dtype}{list(t.sizes)}" for t in self._input_spec.tensors
        )
        return f"<torchproof {self.details['artifact']} package ({inputs})>"
