"""Deep copies of tensors, which Dynamo does not trace."""

from __future__ import annotations

import libcst as cst

from torchproof.checking import Kind
from torchproof.fixing.rewrites.operators import brief, dotted, nodes
from torchproof.fixing.rewrites.site import Changes, Draft, Refused, Site
from torchproof.fixing.rewrites.values import Values

_OF_TENSOR = "copy.deepcopy(TensorVariable())"  # as Dynamo writes it


def clone(site: Site) -> Draft:
    """`copy.deepcopy(x)` of a tensor becomes a clone without its history.

    Only a leaf can be copied, and its copy is a leaf that needs a gradient if it does.
    """
    found = [n for n in nodes(site.statement) if _is_copy(n, Values(site))]
    changes: Changes = {}
    for call in found:
        assert isinstance(call, cst.Call)
        name = _tensor(site, call)
        text = f"{name}.detach().clone().requires_grad_({name}.requires_grad)"
        changes[call] = cst.parse_expression(text)
    if not changes:
        raise Refused("nothing is copied with copy.deepcopy here")
    return Draft("clone the tensor instead of a deep copy", site.replaced(changes))


def _is_copy(node: cst.CSTNode, values: Values) -> bool:
    return isinstance(node, cst.Call) and values.dotted(node.func) == "copy.deepcopy"


def _tensor(site: Site, call: cst.Call) -> str:
    """The name of the tensor that is copied."""
    if len(call.args) != 1 or call.args[0].keyword or call.args[0].star:
        raise Refused(f"`{brief(call)}` is more than a copy")
    value = call.args[0].value
    name = dotted(value)
    if name is None:
        raise Refused(f"`{brief(value)}` would be evaluated twice")
    kind = Values(site).kind(value)
    seen = any(_OF_TENSOR in each for each in site.finding.evidence)
    if not kind.is_tensor and not (seen and kind is Kind.UNKNOWN):
        raise Refused(f"`{name}` may be something else than a tensor")
    if name.startswith("self."):
        raise Refused(f"`{name}` may be a parameter, whose copy is one too")
    return name
