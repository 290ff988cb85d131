"""Writes the graph IR as the source of a candidate: plain torch code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchproof.packs.repro.graphs.graph_ir import (
    Function,
    GraphIR,
    Input,
    Line,
    TensorFacts,
    Values,
    names,
    substitute,
)

# Tensors are drawn on the CPU, so they are the same on every device.
_MAKERS = {
    "normal": """\
def normal(shape, mean=0.0, std=1.0, dtype=torch.float32, device="cpu"):
    drawn = torch.float64 if dtype == torch.float64 else torch.float32
    return (torch.randn(shape, dtype=drawn) * std + mean).to(device, dtype)
""",
    "positive": """\
def positive(shape, low, high, dtype=torch.float32, device="cpu"):
    \"\"\"Draws magnitudes between low and high.\"\"\"
    low, high = math.log(low), math.log(high)
    exponents = torch.rand(shape, dtype=torch.float64) * (high - low) + low
    return exponents.exp().to(device, dtype)
""",
    "whole": """\
def whole(shape, low, high, dtype=torch.int64, device="cpu"):
    return torch.randint(low, high + 1, shape).to(device, dtype)
""",
    "choice": """\
def choice(shape, options, dtype=torch.float32, device="cpu"):
    picked = torch.randint(len(options), shape)
    return torch.tensor(options, dtype=torch.float64)[picked].to(device, dtype)
""",
    "real": """\
def real(name, device="cpu"):
    path = pathlib.Path(__file__).with_name(name)
    return torch.load(path, map_location=device, weights_only=True)
""",
}
_STDLIB = ("math", "operator", "pathlib")
_DEFAULT_DTYPES = {
    "normal": "float32",
    "positive": "float32",
    "choice": "float32",
    "whole": "int64",
}


def candidate_source(graph: GraphIR) -> str:
    """Returns source that defines `make()` and imports only torch and the stdlib."""
    state = [entry for entry in graph.inputs if entry.role != "input"]
    arguments = [entry for entry in graph.inputs if entry.role == "input"]
    body = "\n\n".join([_program(graph, state, arguments), _make(graph, arguments)])
    makers = [text for name, text in _MAKERS.items() if f"{name}(" in body]
    whole = "".join([*makers, body])
    head = "".join(f"import {name}\n" for name in _STDLIB if f"{name}." in whole)
    head += "\nimport torch\n" if head else "import torch\n"
    return "\n\n".join([head, *makers, body])


def _program(graph: GraphIR, state: Sequence[Input], arguments: Sequence[Input]) -> str:
    functions = [_function(inner) for inner in graph.functions]
    parameters = ", ".join(entry.name for entry in arguments)
    attributes = {entry.name: f"self.{entry.name}" for entry in state}
    body = _body(graph.lines, _returned(graph.outputs), attributes)
    decorators = [f"@{context}" for context in graph.contexts]
    if not state:
        head = "\n".join([*decorators, f"def repro({parameters}):"])
        return "\n\n".join([*functions, f"{head}\n{_indented(body, 4)}"])
    lines = ["class Repro(torch.nn.Module):", "    def __init__(self):"]
    lines += [
        "        super().__init__()",
        *(f"        {s}" for s in _assignments(state)),
    ]
    after_self = f", {parameters}" if parameters else ""
    lines += ["", *(f"    {decorator}" for decorator in decorators)]
    lines += [f"    def forward(self{after_self}):", _indented(body, 8)]
    return "\n\n".join([*functions, "\n".join(lines)])


def _function(inner: Function) -> str:
    head = f"@{inner.decorator}\n" if inner.decorator else ""
    head += f"def {inner.name}({', '.join(inner.parameters)}):\n"
    return head + _indented(_body(inner.lines, inner.result, {}), 4)


def _body(lines: Sequence[Line], returned: str, values: dict[str, str]) -> list[str]:
    read = {name for line in lines for name in line.uses} | {*names(returned)}
    statements = []
    for line in lines:
        expression = substitute(line.expression, values)
        unnamed = line.has_effect and line.name not in read
        target = "" if unnamed else f"{line.name} = "
        comment = f"  # {line.facts}" if line.facts and target else ""
        statements.append(f"{target}{expression}{comment}")
    return [*statements, f"return {substitute(returned, values)}"]


def _returned(outputs: Sequence[str]) -> str:
    return outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"


def _assignments(state: Sequence[Input]) -> list[str]:
    """Returns the assignments of `__init__`."""
    lines = _shared_storages(state)
    for entry in state:
        tensor = _tensor(entry)
        if entry.role == "weight":
            grad = "" if entry.facts.requires_grad else ", requires_grad=False"
            lines.append(f"self.{entry.name} = torch.nn.Parameter({tensor}{grad})")
        else:
            lines.append(f'self.register_buffer("{entry.name}", {tensor})')
            if entry.facts.requires_grad:
                lines.append(f"self.{entry.name}.requires_grad_()")
    return lines


def _make(graph: GraphIR, arguments: Sequence[Input]) -> str:
    has_state = len(arguments) < len(graph.inputs)
    fn = "Repro()" if has_state else "repro"
    names = ", ".join(entry.name for entry in arguments)
    call = f"({names},)" if len(arguments) == 1 else f"({names})"
    inputs = _shared_storages(arguments)
    for entry in arguments:
        grad = ".requires_grad_()" if entry.facts.requires_grad else ""
        inputs.append(f"{entry.name} = {_tensor(entry)}{grad}")
        inputs += [
            f"torch._dynamo.maybe_mark_dynamic({entry.name}, {dimension})"
            for dimension in entry.dynamic
        ]
    seed = ["torch.manual_seed(0)"]
    if graph.calls == 1:
        body = [*seed, f"fn = {fn}", *inputs, f"return fn, [{call}]"]
        return f"def make():\n{_indented(body, 4)}"
    several = f"return {fn}, [arguments() for _ in range({graph.calls})]"
    return "\n\n".join(
        [
            f"def arguments():\n{_indented([*inputs, f'return {call}'], 4)}",
            f"def make():\n{_indented([*seed, several], 4)}",
        ]
    )


def _shared_storages(inputs: Sequence[Input]) -> list[str]:
    """Returns assignments of the storages that several inputs are views of."""
    lengths: dict[str, int] = {}
    first: dict[str, Input] = {}
    for entry in inputs:
        if entry.storage:
            end = entry.offset + _extent(entry.facts)
            lengths[entry.storage] = max(lengths.get(entry.storage, 0), end)
            first.setdefault(entry.storage, entry)
    return [
        f"{storage} = {_numbers(first[storage].facts, (length,))}"
        for storage, length in lengths.items()
    ]


def _tensor(entry: Input) -> str:
    facts = entry.facts
    view = f".as_strided({_tuple(facts.shape)}, {_tuple(facts.stride)}"
    if entry.file:
        loaded = f"real({entry.file!r}, {facts.device!r})"
        return loaded if facts.is_contiguous or not facts.numel else f"{loaded}{view})"
    if entry.storage:
        return f"{entry.storage}{view}, {entry.offset})"
    if facts.is_contiguous or not facts.numel:
        return _numbers(facts, facts.shape)
    return f"{_numbers(facts, (_extent(facts),))}{view})"


def _extent(facts: TensorFacts) -> int:
    """Returns how many elements of storage a tensor spans."""
    if not facts.numel:
        return 0
    steps = zip(facts.shape, facts.stride, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)


def _numbers(facts: TensorFacts, shape: tuple[int, ...]) -> str:
    values = facts.values or _default_values(facts.dtype)
    if facts.dtype.startswith("complex"):
        part = {"complex128": "float64"}.get(facts.dtype, "float32")
        parts = _call(values, (*shape, 2), part, facts.device)
        return f"torch.view_as_complex({parts})"
    return _call(values, shape, facts.dtype, facts.device)


def _call(values: Values, shape: tuple[int, ...], dtype: str, device: str) -> str:
    numbers = [_number(number) for number in values.numbers]
    if values.kind in ("whole", "fill"):
        numbers = [_whole(number, dtype) for number in values.numbers]
    where = "" if device == "cpu" else f", device={device!r}"
    if values.kind == "fill":
        return f"torch.full({_tuple(shape)}, {numbers[0]}, dtype=torch.{dtype}{where})"
    kind = "positive" if values.kind == "negative" else values.kind
    parameters = f"[{', '.join(numbers)}]" if kind == "choice" else ", ".join(numbers)
    standard = kind == "normal" and values.numbers == (0.0, 1.0)
    parameters = "" if standard else f", {parameters}"
    exact = "" if dtype == _DEFAULT_DTYPES[kind] else f", dtype=torch.{dtype}"
    sign = "-" if values.kind == "negative" else ""
    return f"{sign}{kind}({_tuple(shape)}{parameters}{exact}{where})"


def _default_values(dtype: str) -> Values:
    if dtype.startswith(("float", "bfloat", "complex")):
        return Values("normal", (0.0, 1.0))
    return Values("whole", (0, 1))


def _number(number: float) -> str:
    """Writes a number as source; infinities have no literal."""
    text = f"{number:.6g}"
    return f'float("{text}")' if text.strip("-") in ("inf", "nan") else text


def _whole(number: float, dtype: str) -> str:
    if dtype == "bool":
        return str(bool(number)) if number in (0, 1) else str(int(number))
    return str(int(number)) if float(number).is_integer() else _number(number)


def _tuple(numbers: tuple[int, ...]) -> str:
    return f"({numbers[0]},)" if len(numbers) == 1 else str(tuple(numbers))


def _indented(lines: Iterable[str], width: int) -> str:
    return "".join(f"{' ' * width}{line}\n" for line in lines)
