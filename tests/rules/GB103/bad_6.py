"""torch.where with one argument is nonzero in disguise; masked_select does the same further down."""
import torch


def dispatch(tokens, assignment, score):
    tokens = tokens * 2
    rows, columns = torch.where(assignment)
    kept = torch.masked_select(score, score > 0.5)
    return tokens[rows].sum(0) + columns.float().mean() + kept.sum()


def make():
    return dispatch, [(torch.randn(3, 4), torch.tensor([[True, False], [False, True], [True, True]]), torch.rand(8))] * 2


EXPECT = [
    {"code": "GB103", "kind": "graph_break", "line": "torch.where(assignment)", "fix": ["nonzero_static", "torch.where", "mask", "capture_dynamic_output_shape_ops"]},
    {"code": "GB103", "kind": "graph_break", "line": "torch.masked_select(", "fix": ["torch.where", "mask", "capture_dynamic_output_shape_ops"]},
]
