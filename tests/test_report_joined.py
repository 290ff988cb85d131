"""As text: what was only read, what no run showed, what is gone since a run before."""

from __future__ import annotations

from dataclasses import replace

from test_report import CLEAN, ITEM, RUN, WANTED, snapshot, text

from torchproof.records.run import Part

HAZARD = replace(
    ITEM,
    code="GB104",
    kind="hazard",
    suspects="graph_break",
    severity="low",
    origin="static",
    message="`print(x)` would split the graph; this run did not compile this line",
    line=50,
)
GONE = replace(ITEM, status="resolved", line=12)
BEFORE = {"id": "20260101-0101-model", "findings": {"high": 1, "medium": 0, "low": 0}}
READ = replace(
    CLEAN,
    target="src",
    strategy="-",
    environment={"torch": None, "device": None},
    counts=dict.fromkeys(CLEAN.counts),
    findings=(replace(ITEM, kind="hazard", suspects="graph_break", origin="static"),),
    parts={
        "static": Part(
            "found", "7 files read, not understood: src/a.py:3 is no Python"
        ),
        "breaks": Part("skipped", "not part of --effort static"),
    },
    options={"effort": "static"},
)


def test_what_was_only_read_says_so_and_gives_no_counts() -> None:
    assert text(READ) == snapshot(
        """
        src: 7 files read, not understood: src/a.py:3 is no Python, nothing was run

        model.py:42:16  GB101 high
           `loss.item()` splits the graph of Net.forward, in every call
            42 |     if loss.item() > limit:
               |        ^^^^^^^^^^^
           why: `loss.item()` needs the tensor's value in Python while the graph is
                traced
           fix: keep `loss` a tensor: torch.where(loss > limit, a, b)

        1 finding (1 high).
        Explain one:  torchproof rule GB101
        All evidence: torchproof show 20260102-0304-model -v
        """
    )
    assert "Nothing found.\n" in text(replace(READ, findings=()))
    skipped = {"static": Part("skipped", "left out with --skip")}
    assert "Nothing found" not in text(replace(READ, findings=(), parts=skipped))


def test_hazards_of_a_run_are_a_line_each_and_not_among_what_was_found() -> None:
    shown = text(replace(CLEAN, findings=(HAZARD, WANTED, GONE), baseline=BEFORE))
    _, _, told = shown.partition("\n\n")
    assert told == snapshot(
        """
        Suspected from the source, not shown by this run:
           model.py:50:16  GB104  `print(x)` would split the graph; this run did not
              compile this line

        Intended by the code, not counted:
           model.py:57:16  GB106  `log(x)` is marked @torch.compiler.disable and splits
              the graph here

        Resolved since run 20260101-0101-model:
           model.py:12:16  GB101  `loss.item()` splits the graph of Net.forward, in
              every call

        Nothing else found: no graph break, skipped frame, recompile or error; 1
        suspected from the source.
        Explain one:  torchproof rule GB104
        All evidence: torchproof show 20260102-0304-model -v
        """
    )


def test_hazards_are_counted_beside_the_findings() -> None:
    shown = text(replace(RUN, findings=(*RUN.findings, HAZARD)))
    assert "3 findings (1 high, 1 medium, 1 low); 1 suspected from the source." in shown
    assert "model.py:50:16  GB104 low\n" in text(
        replace(RUN, findings=(HAZARD,)), verbose=True
    )
