"""The kinds of values that matter to tracing, and what functions of torch return."""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Mapping


class Kind(enum.Enum):
    """The kind of a value. Patterns report nothing about an UNKNOWN value."""

    TENSOR = enum.auto()
    MASK = enum.auto()  # a boolean tensor
    TENSORS = enum.auto()  # a tuple or list of tensors
    SIZE = enum.auto()  # an integer that tracing knows or keeps as a symbol
    LENGTH = enum.auto()  # a size of a tensor: a symbol if it is dynamic
    SIZES = enum.auto()
    CONDITION = enum.auto()  # a comparison of lengths: a symbol if they are dynamic
    NUMBER = enum.auto()  # a Python number read out of a tensor
    PYTHON = enum.auto()  # any other Python value
    NONE = enum.auto()
    ARRAY = enum.auto()  # a numpy array
    LAYER = enum.auto()  # a module that returns a tensor
    RECURRENT = enum.auto()  # an LSTM, GRU or RNN
    MODULES = enum.auto()
    UNKNOWN = enum.auto()

    @property
    def is_tensor(self) -> bool:
        return self in (Kind.TENSOR, Kind.MASK)

    @property
    def is_plain(self) -> bool:
        """A Python value that tracing knows."""
        return self in (Kind.SIZE, Kind.LENGTH, Kind.CONDITION, Kind.PYTHON)


def join(a: Kind, b: Kind) -> Kind:
    """The kind of a value that comes from one of two paths."""
    if a is b:
        return a
    if Kind.NONE in (a, b):  # an optional value, used only if it is not None
        return b if a is Kind.NONE else a
    if a.is_tensor and b.is_tensor:
        return Kind.TENSOR
    if {a, b} == {Kind.SIZE, Kind.LENGTH}:
        return Kind.SIZE
    return Kind.PYTHON if a.is_plain and b.is_plain else Kind.UNKNOWN


def words(text: str) -> frozenset[str]:
    """A set of names, written without quotes and commas."""
    return frozenset(text.split())


def _table(names: Mapping[Kind, str]) -> dict[str, Kind]:
    return {name: kind for kind, text in names.items() for name in text.split()}


_MASKS = (
    "isnan isinf isfinite eq ne lt le gt ge any all logical_and logical_or logical_not"
    " logical_xor isclose greater less greater_equal less_equal not_equal"
)
_SEVERAL = "split chunk unbind tensor_split topk sort kthvalue svd qr aminmax"
# Attributes of a tensor and their kinds.
ATTRIBUTES = _table(
    {
        Kind.TENSOR: "T mT H mH data grad real imag",
        Kind.SIZES: "shape",
        Kind.SIZE: "ndim nbytes itemsize",
        Kind.PYTHON: "dtype device layout requires_grad names grad_fn is_cuda is_sparse"
        " is_leaf is_quantized is_meta is_nested",
    }
)
# Methods of a tensor that do not return a plain tensor.
METHODS = _table(
    {
        Kind.SIZES: "size",
        Kind.SIZE: "dim element_size stride storage_offset get_device ndimension",
        Kind.LENGTH: "numel nelement __len__",
        Kind.PYTHON: "data_ptr storage untyped_storage type has_names register_hook"
        " backward retain_grad",
        Kind.NUMBER: "item tolist",
        Kind.ARRAY: "numpy",
        Kind.TENSORS: f"{_SEVERAL} hsplit",
        Kind.MASK: f"{_MASKS} bool",
    }
)
# These return values and indices if a dimension is given.
WITH_INDICES = words("max min median mode cummax cummin nanmedian")
# Methods that only tensors have in compiled code.
TENSOR_ONLY = words(
    "view unsqueeze permute contiguous expand masked_fill softmax detach size dim numel"
    " item float half bfloat16 bool to type_as expand_as view_as masked_select"
    " masked_scatter unbind chunk sigmoid relu tanh matmul bmm index_select gather"
    " scatter scatter_ repeat_interleave unfold norm topk nonzero long new_zeros"
    " new_ones new_tensor is_floating_point log_softmax add_ mul_ clamp_ copy_"
    " requires_grad_ ndimension flatten transpose squeeze clamp abs exp sqrt pow neg"
    " sum mean max min any all std var argmax cumsum reshape isnan isinf tolist cpu"
    " cuda numpy backward argmin log cos sin"
)
# Functions of torch that do not return a plain tensor.
FUNCTIONS = _table(
    {
        Kind.PYTHON: "device dtype manual_seed finfo iinfo Generator no_grad"
        " enable_grad inference_mode compile autocast load save initial_seed seed vmap"
        " typename",
        Kind.SIZE: "numel sym_int sym_max sym_min sym_float",
        Kind.SIZES: "broadcast_shapes Size",
        Kind.TENSORS: f"{_SEVERAL} meshgrid broadcast_tensors lstm gru var_mean"
        " std_mean frexp atleast_1d split_with_sizes",
        Kind.MASK: f"{_MASKS} isin bitwise_not",
        Kind.NUMBER: "allclose equal is_nonzero",
    }
)
# Prefixes of functions of torch about settings and types: is_autocast_enabled.
_ASKS = ("is_", "are_", "can_", "get_", "has_", "set_", "use_", "promote_")
_TORCH = re.compile(r"torch\.(?:nn\.functional\.|special\.|linalg\.|fft\.)?([a-z]\w*)$")
_LAYER = re.compile(
    r"torch\.nn\.(?:Linear|LazyLinear|Bilinear|Conv\w+|Lazy\w+|Embedding\w*|Dropout\w*|"
    r"\w*Norm\w*|ReLU6?|GELU|SiLU|Mish|ELU|CELU|SELU|Tanh\w*|Sigmoid|LogSigmoid|"
    r"Softmax\w*|LogSoftmax|Softplus|Hardswish|Hardtanh|LeakyReLU|PReLU|GLU|Identity|"
    r"Flatten|Unflatten|\w+Pool\dd|Upsample\w*|Pad\w*|\w+Pad\dd|PixelShuffle|Fold|"
    r"Unfold|Sequential|\w+Loss|CosineSimilarity|TransformerEncoder\w*|"
    r"TransformerDecoder\w*|Transformer)$"
)
_TENSOR_TYPE = re.compile(
    r"(?:torch\.)?(?:\w*Tensor|nn\.Parameter)|jaxtyping\.\w+", re.ASCII
)


def of_torch(dotted: str) -> Kind | None:
    """What a function of torch returns; None if it is not a function of torch."""
    if dotted.startswith(("torch.cuda.", "torch.jit.", "torch.distributed.")):
        return Kind.UNKNOWN
    if (match := _TORCH.match(dotted)) is None:
        return None
    asks = match[1].startswith(_ASKS) or match[1].endswith("_type")
    return FUNCTIONS.get(match[1], Kind.PYTHON if asks else Kind.TENSOR)


def of_method(name: str) -> Kind:
    """What a method of a tensor returns."""
    asks = name.startswith("is_") and name != "is_nonzero"
    return METHODS.get(name, Kind.PYTHON if asks else Kind.TENSOR)


def is_attribute(name: str) -> bool:
    """Whether tensors have an attribute of this name that is not called."""
    return name in ATTRIBUTES or name.startswith("is_")


def of_module(dotted: str) -> Kind:
    """The kind of an instance of a torch.nn class."""
    if dotted in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
        return Kind.TENSOR
    if dotted in ("torch.nn.ModuleList", "torch.nn.ModuleDict"):
        return Kind.MODULES
    if dotted in ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN"):
        return Kind.RECURRENT
    return Kind.LAYER if _LAYER.match(dotted) else Kind.UNKNOWN


def of_annotation(node: ast.expr | None) -> Kind:
    """The kind that an annotation promises. `Tensor | None` counts as a tensor."""
    if node is None:
        return Kind.UNKNOWN
    text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
    if not isinstance(text, str):
        return Kind.NONE if text is None else Kind.UNKNOWN
    return _of_type(text.replace(" ", ""))


def _of_type(text: str) -> Kind:
    text = re.sub(r"^(?:typing\.)?(?:Optional|Annotated)\[(.*)\]$", r"\1", text)
    choices = [c for c in _split(text, "|") if c != "None"]
    if len(choices) > 1:
        choice_kinds = {_of_type(choice) for choice in choices}
        if choice_kinds == {Kind.TENSOR}:
            return Kind.TENSOR
        return Kind.PYTHON if choice_kinds <= {Kind.PYTHON, Kind.SIZE} else Kind.UNKNOWN
    [text] = choices or ["None"]
    if _TENSOR_TYPE.fullmatch(text):
        return Kind.TENSOR
    if re.fullmatch(r"(?:typing\.)?(?:[Ll]ist|[Tt]uple|Sequence|Iterable)\[.*\]", text):
        inner = _split(text.partition("[")[2][:-1], ",")
        whole = {_of_type(part) for part in inner if part != "..."}
        if whole == {Kind.TENSOR}:
            return Kind.TENSORS
        return Kind.PYTHON if whole <= {Kind.PYTHON, Kind.SIZE} else Kind.UNKNOWN
    if text == "int":
        return Kind.SIZE
    if text in ("float", "bool", "str", "bytes", "torch.dtype", "torch.device"):
        return Kind.PYTHON
    return Kind.SIZES if text in ("torch.Size", "Size") else Kind.UNKNOWN


def _split(text: str, at: str) -> list[str]:
    """Splits at a character that is outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == at and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]
