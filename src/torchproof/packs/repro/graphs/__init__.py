"""Candidates of form "graph": a graph that Dynamo captured, as plain torch code.

`graph_recorder` writes them (`graph_source`) in the process that runs
the target. `graph_reducer` shrinks one with torch's minifier, which runs in a child
process: `python -m torchproof.packs.repro.graphs`.
"""
