"""The process in which `check --watch` makes one check.

It receives the words of a command line and the run to compare with, and shows progress
on stderr. It sends `{"files"}`, the user's files that the target consists of, and then
`{"run", "seen"}`: the run, which is saved as well, and the source that it saw. An error
that ends the check is sent as `{"error", "begun"}`: whether a part had begun by then.
Ending this process ends everything that the check started.
"""

from __future__ import annotations

from torchproof.cli import check_verb, timelines, verbs
from torchproof.process import Channel, Message, hold, leave
from torchproof.records import Observation, PartState, Run, UserError


def main() -> None:
    hold(descendants=True)
    channel = Channel.to_parent()
    try:
        channel.send(_answer(channel.receive(), channel))
    except KeyboardInterrupt:  # cancelled before there was anything to save
        leave(130)
    leave(0)


def _answer(job: Message, channel: Channel) -> Message:
    from torchproof import api

    options = verbs.parsed(job["words"])
    seen = api.SeenSource()
    begun: list[PartState] = []

    def observing(observation: Observation) -> None:
        nonlocal seen
        seen = api.SeenSource.of(target, observation)

    try:
        target = api.parse(options.target, options.script)
        channel.send({"files": list(map(str, api.files_of(target)))})
        ranks = check_verb.rank_options(options)
        purposes = timelines.purposes(options, on_ranks=ranks is not None)
        with timelines.recorded(purposes) as timeline:
            run = check_verb.checked(
                options,
                timeline,
                begun.append,
                ranks=ranks,
                baseline=Run.from_json(job["baseline"]) if job["baseline"] else None,
                observing=observing,
            )
    except (UserError, OSError) as error:  # a full disk
        return {"error": str(error), "begun": bool(begun)}
    return {"run": run.to_json(), "seen": seen.to_json()}


if __name__ == "__main__":
    main()
