"""Candidates of form "graph": a graph that Dynamo captured, as plain torch code.

`graph_recorder` reads graphs (`fx_reader`) in the process that runs the target.
`variants` turns a recorded graph into candidates, and `graph_reducer` shrinks them; both
work without torch. All of them exchange `graph_ir.GraphIR`, which `source_writer` writes
as Python source. `python -m torchproof.packs.repro.graphs` runs torch's minifier.
"""
