"""Children: they answer, they end with everything they started, they run jobs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import python
from waiting import wait_for

from torchproof import process
from torchproof.process import (
    Child,
    CpuShare,
    Ended,
    Followed,
    ForkServer,
    Garbled,
    spawn,
)
from torchproof.process.cpu_share import CpuTime

ECHO = """
import os, subprocess, sys, time
from torchproof.process import Channel, Ended, hold
hold()
channel = Channel.to_parent()
while True:
    try:
        message = channel.receive()
    except Ended:
        break
    if "run" in message:
        exec(message["run"])
    channel.send(message)
"""
# A process that has left the session and lost its parent.
DETACHED = """
command = [sys.executable, "-c", "import time; time.sleep(99)"]
if os.fork() == 0:
    os.setsid()
    started = subprocess.Popen(command)
    channel.send({"detached": started.pid})
    os._exit(0)
"""


@pytest.fixture
def child() -> Iterator[Child]:
    with spawn("-c", ECHO, output=process.DEVNULL) as started:
        yield started


def is_running(pid: int) -> bool:
    return pid in process.tree(pid)


def test_a_child_answers_whatever_happens_in_between(child: Child) -> None:
    data = os.urandom(3 << 20)
    answer = child.ask({"data": process.packed(data)}, 60.0)
    assert process.unpacked(answer["data"]) == data
    with pytest.raises(TimeoutError):  # which leaves the channel usable
        child.ask({"run": "time.sleep(0.5)"}, 0.05)
    assert child.receive(60.0) == {"run": "time.sleep(0.5)"}
    child.channel.send({"run": "channel._socket.sendall(b'[1]\\n{\\n')"})
    for _ in range(2):  # lines that are no messages
        with pytest.raises(Garbled):
            child.receive(60.0)
    assert "run" in child.receive(60.0)

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):  # a tick ends the wait
        child.ask({}, None, stop)


CLOSES_FILES = """
import os, socket, sys
from torchproof.process import Stream
stream = Stream()
stream.write("first")
os.closerange(3, 64)
ours, theirs = socket.socketpair()  # with the numbers that are free now
stream.write("second")
theirs.setblocking(False)
try:
    theirs.recv(100)
except BlockingIOError:
    sys.exit(7)
"""


def test_a_program_that_closes_all_files_goes_on_unobserved() -> None:
    with spawn("-c", CLOSES_FILES) as started:
        assert started.receive(60) == {"kind": "first"}
        with pytest.raises(process.Ended):
            started.receive(60)
        assert started.wait(60) == 7


@pytest.mark.parametrize(
    ("last", "ending"),
    [("os._exit(3)", "exit code 3"), ("os.kill(os.getpid(), 9)", "SIGKILL")],
)
def test_the_end_of_a_child_is_recognised(child: Child, last: str, ending: str) -> None:
    # A fork that keeps the socket open does not hide the end.
    fork = "os.fork() or (time.sleep(99), os._exit(0))"
    with pytest.raises(Ended, match=ending):
        child.ask({"run": f"{fork}; {last}"}, 60.0)


@pytest.mark.parametrize("code", [0, 3])
def test_end_that_was_not_observed_says_how_it_may_have_come(code: int) -> None:
    assert "os.exec" in (Followed([], "finished", code).failure(script=True) or "")
    events = [{"kind": "environment"}, {"kind": "script_end", "code": 3, "error": "E"}]
    assert "os.exec" not in str(Followed(events, "finished", code).failure(script=True))


def test_what_a_child_sent_before_it_ended_is_received(child: Child) -> None:
    child.channel.send({"run": "channel.send({'n': 1}); channel.send({}); sys.exit()"})
    child.wait(60.0)
    assert child.receive() == {"n": 1} and child.receive() == {}
    with pytest.raises(Ended, match="exit code 0"):
        child.receive()


def test_kill_ends_what_left_the_session_and_lost_its_parent(child: Child) -> None:
    child.channel.send({"run": DETACHED})
    messages = [child.receive(60.0) for _ in range(2)]
    [detached] = [m["detached"] for m in messages if "detached" in m]
    assert is_running(detached)
    wait_for(lambda: detached not in process.tree(child.pid))  # only the mark is left
    child.kill()
    assert not is_running(detached) and not is_running(child.pid)
    child.kill()  # has no effect
    with pytest.raises(Ended, match="closed"):
        child.ask({})


def test_kill_tree_without_a_mark_ends_session_and_descendants() -> None:
    middle = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', "
    leaf = repr("import time; time.sleep(99)")
    with spawn("-c", f"{middle}{leaf}])", output=process.DEVNULL) as child:
        wait_for(lambda: len(process.tree(child.pid)) >= 2)
        members = process.tree(child.pid)
        assert process.kill_tree(child.pid)
        assert not any(map(is_running, members))


def test_a_lower_priority_is_inherited(child: Child) -> None:
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    # A Python would take long to start while it is idle.
    read = "subprocess.check_output(['cat', '/proc/self/stat']).decode()"

    def started() -> list[int]:
        stat = child.ask({"run": f"message['stat'] = {read}"}, 60.0)["stat"]
        fields = stat.rpartition(")")[2].split()  # from the third field on
        return [int(fields[41 - 3]), int(fields[19 - 3])]  # the policy, the niceness

    child.lower_priority("low")
    assert started() == [os.SCHED_OTHER, nice]
    autogroup = Path(f"/proc/{child.pid}/autogroup")
    if autogroup.exists() and "nice" in autogroup.read_text():
        assert autogroup.read_text().split()[-1] == str(nice)
    child.lower_priority("idle")
    assert started() == [os.SCHED_IDLE, nice]


def test_processes_starve_that_wait_nearly_all_of_the_time() -> None:
    seen: dict[int, CpuTime] = {}
    share = CpuShare(seen.get)
    seen[1] = CpuTime(ran_s=1.0, waited_s=25.0)
    assert not share.is_starved([1, 2])  # too short to say
    seen[2] = CpuTime(ran_s=0.5, waited_s=5.0)
    assert share.is_starved([1, 2])
    # They count from the last answer on, and 1 goes on at full speed.
    seen[1], seen[2] = CpuTime(31.0, 25.0), CpuTime(0.5, 35.0)
    assert not share.is_starved([1, 2])


def test_several_threads_send_whole_lines_to_this_child_alone(child: Child) -> None:
    def send(number: int) -> None:
        for _ in range(10):
            child.channel.send({"from": number, "text": "x" * 100_000})

    threads = [threading.Thread(target=send, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    received = [child.receive(60.0)["from"] for _ in range(30)]
    assert sorted(received) == [0] * 10 + [1] * 10 + [2] * 10
    # Programs that the child starts do not inherit the channel.
    run = "message['open'] = os.get_inheritable(channel._socket.fileno())"
    assert child.ask({"run": run}, 60.0)["open"] is False


def test_environment_directory_and_output(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as output:
        code = "import os; print(os.getcwd(), os.environ['A'], 'HOME' in os.environ)"
        with spawn(
            "-c",
            code,
            environment={"A": "1"},
            inherit=False,
            cwd=tmp_path,
            output=output,
        ) as child:
            assert child.wait(60.0) == 0
    assert (tmp_path / "out").read_text() == f"{tmp_path} 1 False\n"


SERVER = """
import os, signal, sys, time
from torchproof.process import hold, serve
hold()

def run(job):
    exec(job["run"])
    return job["code"]

serve(run)
"""


@pytest.fixture
def server() -> Iterator[ForkServer]:
    made = ForkServer(spawn("-c", SERVER, output=process.DEVNULL))
    yield made
    made.close()


def test_jobs_run_in_forks_with_a_limit(server: ForkServer) -> None:
    jobs = [
        ("", 3, 60.0, 3),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 0, 60.0, -signal.SIGSEGV),
        ("raise ValueError", 0, 60.0, 1),
        ("time.sleep(99)", 0, 0.2, None),
    ]
    futures = [
        server.submit({"run": run, "code": code}, limit) for run, code, limit, _ in jobs
    ]
    assert [f.result(60).code for f in futures] == [expected for *_, expected in jobs]
    assert 0.2 <= futures[-1].result().seconds < 30


def test_jobs_end_with_their_server(server: ForkServer, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    write = f"open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(99)"
    future = server.submit({"run": write, "code": 0}, 60.0)
    wait_for(lambda: file.exists() and file.read_text())
    server.close()
    assert future.result(10).code == -9
    assert not is_running(int(file.read_text()))
    assert server.submit({"run": "", "code": 0}, 1.0).result(10).code == -9


def test_a_quiet_child_that_fails_leaves_its_last_words() -> None:
    missing = "/no/such/file"
    child = process.follow(
        "json.tool", missing, lambda *_: None, process.Conditions(quiet=True)
    )
    assert child.code and child.ending == "finished"
    assert missing in child.last_words


FRAMES_AND_GARBAGE = """
import faulthandler, gc, threading
from torchproof.process import frames_of_threads

faulthandler.dump_traceback_later(60, exit=True)

class Cycle:
    def __init__(self):
        self.itself = self
        self.local = threading.local()

def deep(depth, count):
    allocated = [[] for _ in range(count % 7)]
    return deep(depth - 1, count) if depth else frames_of_threads()

gc.set_threshold(5, 1, 1)
for count in range(4000):
    Cycle()
    deep(3, count)
assert gc.isenabled() and threading.get_ident() in frames_of_threads()
gc.disable()
frames_of_threads()
assert not gc.isenabled()
"""


def test_frames_of_threads_are_safe_beside_garbage_collections() -> None:
    """`sys._current_frames` itself blocks for ever here, on Python 3.11."""
    done = python(FRAMES_AND_GARBAGE)
    assert done.returncode == 0, done.stderr
