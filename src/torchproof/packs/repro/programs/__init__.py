"""Candidates of the form "program": source code of the target itself.

`whole_program` extracts what a target reaches, with `file_merger` and `tree_shaking`.
`program_reducer` shrinks it by the edits of `edits`.
"""
