"""Candidates of form "graph": a graph that Dynamo captured, as plain torch code.

`graph_recorder` reads graphs (`fx_reader`) in the process that runs the target.
`variants` turns a recorded graph into candidates, and `graph_reducer` shrinks them;
both work without torch. They all exchange `graph_ir.GraphIR`; `source_writer` writes it
as Python source. `python -m torchproof.packs.repro.graphs` runs torch's minifier.
"""
