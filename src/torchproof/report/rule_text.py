"""The output of `torchproof rule`: the documentation of one rule, or all rules."""

from __future__ import annotations

from torchproof.checking import RETIRED, RULES, by_code


def rule_page(code: str) -> str:
    if why := RETIRED.get(code.upper()):
        return f"{code.upper()} was retired: {why}"
    return by_code(code).documentation()


def rule_list() -> str:
    return "\n".join(f"{rule.code}  {rule.kind:15}  {rule.summary()}" for rule in RULES)
