"""Candidates of forms "program" and "frame": source code of the target itself.

`whole_program` extracts a program from its files without running it. `frames` needs
torch: it extracts the failing function from a running program. `program_reducer`
shrinks both, and `anonymise` replaces the names and strings that are left.
"""
