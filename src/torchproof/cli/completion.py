"""Shell completion: the scripts for three shells, and the words that they ask for.

A script passes the command line to `torchproof completion --line`, which answers with
one word a line, and its description after a tab. The words come from the options, so
scripts never have to be written again, and all shells complete the same.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torchproof.cli.commands import COMMANDS, SHELLS
from torchproof.records import files, line, store
from torchproof.records.option import Option, OptionField, options_of

_MOST_BYTES = 2**20  # of a file that is read for its functions

Word = tuple[str, str]  # with its description
_HELP = (("-h", ""), ("--help", "show this help message and exit"))

# Bash breaks words at colons and equal signs, and completes what is behind the last
# one. It is given the whole line instead, and the answers are cut to what it expects.
_BASH = """\
_torchproof() {
    local line=${COMP_LINE:0:COMP_POINT} found word before
    found=$("${1/#\\~/$HOME}" completion --line="$line" 2>/dev/null) || return
    before=${line##*[[:space:]]}
    if [[ $COMP_WORDBREAKS == *:* && $before == *:* ]]; then
        before=${before%"${before##*:}"}
    elif [[ $COMP_WORDBREAKS == *=* && $before == *=* ]]; then
        before=${before%"${before##*=}"}
    else
        before=
    fi
    COMPREPLY=()
    while IFS= read -r word; do
        [[ -n $word ]] || continue
        word=${word%%$'\\t'*}
        printf -v word %q "${word#"$before"}"
        COMPREPLY+=("$word")
    done <<<"$found"
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[:/=] ]]; then
        compopt -o nospace
    fi
}
complete -F _torchproof torchproof
"""
_ZSH = """\
#compdef torchproof
_torchproof() {
    local line="${(j: :)words[1,CURRENT-1]} $PREFIX" found each
    local -a whole open whole_texts open_texts
    found=$("${words[1]/#\\~/$HOME}" completion --line="$line" 2>/dev/null) || return
    for each in "${(@f)found}"; do
        [[ -n $each ]] || continue
        if [[ ${each%%$'\\t'*} == *[:/=] ]]; then
            open+=("${each%%$'\\t'*}")
            open_texts+=("${each/$'\\t'/  -- }")
        else
            whole+=("${each%%$'\\t'*}")
            whole_texts+=("${each/$'\\t'/  -- }")
        fi
    done
    compadd -l -d whole_texts -a whole
    compadd -S '' -l -d open_texts -a open
}
if [[ $funcstack[1] == _torchproof ]]; then
    _torchproof "$@"
else
    compdef _torchproof torchproof
fi
"""
_FISH = """\
function __torchproof_words
    set -l line (commandline -cp | string collect)
    command torchproof completion --line="$line" 2>/dev/null
end
complete -c torchproof -f -a '(__torchproof_words)'
"""
SCRIPTS = dict(zip(SHELLS, (_BASH, _ZSH, _FISH), strict=True))


def complete(text: str) -> str:
    """The answer for a command line up to the cursor."""
    words = split(text)
    found = dict(candidates(words))
    current = words[-1]
    return "".join(
        f"{word}\t{line(about)}\n" if about else f"{word}\n"
        for word, about in found.items()
        if word.startswith(current) and word.isprintable()
    )


def split(text: str) -> list[str]:
    """The words of an unfinished line; the last one is the word to complete."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words += lexer
    except ValueError:  # an open quotation is the last word
        return [*words, lexer.token]
    ends = bool(re.search(r"(?<!\\)\s$", text)) or not text
    return [*words, ""] if ends or not words else words


def candidates(words: Sequence[str]) -> Iterator[Word]:
    """What may stand in place of the last word; the first one is the program."""
    if len(words) == 1:
        return  # the shell completes its name
    *before, current = words[1:]
    verb = next((word for word in before if word in COMMANDS), None)
    if "--" in before:
        yield from _paths(current)
    elif verb is not None:
        after = before[before.index(verb) + 1 :]
        yield from _of_verb(options_of(COMMANDS[verb]), after, current)
    else:
        if current.startswith("-"):
            yield from (*_HELP, ("--version", "show the version and exit"))
        yield from ((name, kind.__doc__ or "") for name, kind in COMMANDS.items())


def _of_verb(
    options: Sequence[OptionField], before: Sequence[str], current: str
) -> Iterator[Word]:
    """The value of a flag that needs one, otherwise the next argument or a flag."""
    flags = {each.flag: each for each in options if each.flag}
    positional = [each for each in options if not each.flag]
    waiting: OptionField | None = None
    for word in before:
        option = flags.get(word)
        if waiting is not None:
            waiting = None
        elif option and not option.is_switch and option.option.const is None:
            waiting = option  # the next word is its value
        elif not word.startswith("-"):
            del positional[:1]
    name, equals, value = current.partition("=")
    if waiting is not None:
        yield from _values(waiting.option, current)
    elif equals and name in flags:
        for word, about in _values(flags[name].option, value):
            yield f"{name}={word}", about
    elif current.startswith("-"):
        yield from _HELP
        yield from ((flag, each.option.help) for flag, each in flags.items())
    elif positional:
        yield from _values(positional[0].option, current)


def _values(option: Option, current: str) -> Iterator[Word]:
    if option.choices:
        yield from ((choice, "") for choice in option.choices)
        return
    for kind in option.metavar.split(" | "):
        if kind in _KINDS:
            yield from _KINDS[kind](current)


def _targets(current: str) -> Iterator[Word]:
    from torchproof.api import WORKLOADS

    file, colon, _ = current.partition(":")
    if colon and file.endswith(".py"):
        yield from ((f"{file}:{name}", "") for name in _functions(Path(file)))
        return
    for name, workload in WORKLOADS.items():
        yield f"workload:{name}", workload.summary
    yield from _paths(current, ".py")


def _functions(file: Path) -> list[str]:
    """The functions of a file that a factory may be; the file is not run."""
    try:
        text = files.read_bytes(file, _MOST_BYTES).decode(errors="replace")
    except Exception:  # completion is silent about what it cannot read
        return []
    return re.findall(r"^(?:async )?def ([A-Za-z]\w*)\(", text, re.M)


def _runs(current: str) -> Iterator[Word]:
    yield from ((folder.name, "saved run") for folder in store.listing())
    yield from _paths(current, ".json")


def _codes(current: str) -> Iterator[Word]:
    from torchproof.report import rule_list

    for row in rule_list().splitlines():
        code, _, about = row.split(maxsplit=2)
        yield code, about


def _several_codes(current: str) -> Iterator[Word]:
    """The last code of a list."""
    start = current.rpartition(",")[0]
    for code, about in _codes(current):
        yield f"{start},{code}" if start else code, about


def _paths(current: str, ending: str = "") -> Iterator[Word]:
    """Files with an ending, and folders, beside what is typed so far."""
    typed = os.path.dirname(current)
    folder = os.path.expanduser(typed) or "."
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") and not os.path.basename(current).startswith("."):
            continue
        word = os.path.join(typed, entry.name)
        if entry.is_dir():
            yield f"{word}/", ""
        elif entry.name.endswith(ending):
            yield word, ""


def _folders(current: str) -> Iterator[Word]:
    yield from (each for each in _paths(current) if each[0].endswith("/"))


_KINDS: dict[str, Callable[[str], Iterator[Word]]] = {
    "A": _runs,
    "B": _runs,
    "CODE": _codes,
    "CODES": _several_codes,
    "DIR": _folders,
    "FILE": _paths,
    "PATH": _paths,
    "RUN": _runs,
    "TARGET": _targets,
}
