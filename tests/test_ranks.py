"""Real processes: results come back, failures are told apart, and nothing is left behind."""

import functools
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import nbclient
import nbformat
import psutil
import pytest
import rank_programs as programs
import torch

from scalebook import ranks
from scalebook.book import execute

TESTS = os.path.dirname(os.path.abspath(__file__))
PROMPT_S = 1.5  # measured 0.25 s; the machine may be busy


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has what this needs")


def descendants_of_servers():
    """The ranks that are alive now: children of the fork server, which is a child of this process."""
    return [rank for child in psutil.Process().children() for rank in child.children(recursive=True)]


def assert_nothing_is_left():
    assert descendants_of_servers() == []
    assert [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN] == []


def wait_until(condition, seconds=5):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition did not become true in time"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _leave_nothing():
    yield
    assert_nothing_is_left()


# Results


def test_results_come_in_the_order_of_ranks_with_their_arguments():
    results = ranks.run(programs.identity, 5, "a", {"b": 2})
    assert results == [(rank, 5, ("a", {"b": 2})) for rank in range(5)]


def test_each_rank_is_a_process_of_its_own_with_one_thread():
    facts = ranks.run(programs.process_facts, 4)
    assert len({pid for pid, _, _ in facts} | {os.getpid()}) == 5
    assert {(threads, backend) for _, threads, backend in facts} == {(1, "gloo")}


def test_sixteen_ranks_run_on_a_small_machine():
    assert [result[0] for result in ranks.run(programs.identity, 16)] == list(range(16))


def test_one_rank_is_enough():
    assert ranks.run(programs.identity, 1) == [(0, 1, ())]


def test_tensors_larger_than_a_pipe_come_back_exactly():
    elements = 500_000
    before = shared_memory()
    for rank, tensor in enumerate(ranks.run(programs.big_tensor, 3, elements)):
        assert torch.equal(tensor, torch.arange(elements, dtype=torch.float64) + rank)
    assert shared_memory() - before == set()


def shared_memory():
    """PyTorch's files in the memory that processes share, where the system shows such files."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir() if "torch" in path.name} if folder.exists() else set()


def test_nothing_that_a_rank_prints_reaches_the_screen(capfd):
    ranks.run(programs.talk, 2)
    assert capfd.readouterr() == ("", "")


def test_two_threads_can_run_ranks_at_once(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "main.py", raising=False)  # a test's worker has none
    results = {}
    threads = [
        threading.Thread(target=lambda n=n: results.update({n: ranks.run(programs.identity, n)})) for n in (2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(results[n]) for n in (2, 3)] == [2, 3]
    assert sys.modules["__main__"].__dict__.get("__name__") == "__main__"
    assert sys.modules["__main__"].__file__ == "main.py"


def test_a_child_that_a_rank_started_is_ended_with_it():
    pids = ranks.run(programs.leave_a_child, 2)
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


@linux
def test_a_process_with_a_session_of_its_own_is_ended_too_before_the_run_returns():
    started = [pid for pids in ranks.run(programs.leave_a_session, 2) for pid in pids]
    assert len(set(started)) == 4
    assert not any(psutil.pid_exists(pid) for pid in started)


@linux
def test_it_is_ended_after_a_failure_as_well():
    with pytest.raises(ranks.RankError, match="ZeroDivisionError") as caught:
        ranks.run(programs.leave_a_session, 1, 0)
    own, orphan = map(int, re.search(r"ZeroDivisionError: (\d+) (\d+)", str(caught.value)).groups())
    assert not psutil.pid_exists(own)
    assert not psutil.pid_exists(orphan)


def test_a_port_that_is_taken_is_not_needed(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        assert [rank for rank, *_ in ranks.run(programs.identity, 3)] == [0, 1, 2]


NO_FILES = """
    import psutil, resource, rank_programs
    from scalebook import ranks
    ranks.run(rank_programs.identity, 1)  # Python's search for a folder of temporary files is behind us
    for process in [psutil.Process(), *psutil.Process().children()]:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
    results = ranks.run(rank_programs.big_tensor, 4, 500_000)
    print([int(tensor[-1]) for tensor in results])
"""


@linux
def test_a_run_writes_no_byte_to_a_file_so_a_full_shared_memory_or_disk_does_not_stop_it(tmp_path):
    code, out, err, left = run_script(tmp_path, NO_FILES)
    assert (code, err) == (0, "")
    assert out == "[499999, 500000, 500001, 500002]\n"
    assert [path for path in left if path.stat().st_size] == []


@linux
def test_what_a_rank_cannot_write_is_told_in_its_words():
    with pytest.raises(ranks.RankError, match=r"rank 1 of 2 raised OSError: .*No space left on device"):
        ranks.run(programs.write_to_a_full_device, 2)


@pytest.mark.slow
@pytest.mark.alone
def test_fifty_runs_in_a_row_leave_nothing_open():
    """Good runs, failures, deaths and deadlines in turn, and the parent has what it had before."""
    ranks.run(programs.identity, 1)  # the server is there to stay
    process = psutil.Process()
    before = process.num_fds(), process.num_threads(), len(process.children(recursive=True))
    for turn in range(50):
        kind = turn % 5
        if kind == 0:
            with pytest.raises(ranks.RankError, match="rank 2 of 4 raised ZeroDivisionError"):
                ranks.run(programs.raise_on, 4, [2], [0])
        elif kind == 1:
            with pytest.raises(ranks.RankError, match="rank 1 of 4 ended with exit code 3"):
                ranks.run(programs.exit_on, 4, 1, 3)
        elif kind == 2:
            with pytest.raises(ranks.RankTimeout, match="had not finished after 2 s"):
                ranks.run(programs.never_join, 4, 3, timeout=2)
        else:
            assert [rank for rank, *_ in ranks.run(programs.identity, 4)] == [0, 1, 2, 3]
        assert (process.num_fds(), process.num_threads(), len(process.children(recursive=True))) == before


# Failures


def test_the_traceback_and_the_output_of_the_rank_that_raised_are_reported():
    with pytest.raises(ranks.RankError) as caught:
        ranks.run(programs.raise_on, 4, [2], [0])
    text = str(caught.value)
    assert text.startswith("rank 2 of 4 raised ZeroDivisionError: rank 2 gave up\n")
    assert "in raise_on" in text
    assert "raise ZeroDivisionError" in text
    assert "Rank 2 had printed:\nlast words of 2" in text
    assert "onnection closed" not in text
    assert caught.value.rank == 2
    assert caught.value.signal is None


@pytest.mark.parametrize("first", [0, 1, 3])
def test_the_first_of_two_failures_is_reported(first):
    second = (first + 1) % 4
    with pytest.raises(ranks.RankError, match=f"^rank {first} of 4 raised"):
        ranks.run(programs.raise_on, 4, [first, second], [0.0, 0.1])


def test_a_rank_that_exits_is_reported_and_not_its_peers_lost_connections():
    with pytest.raises(ranks.RankError, match=r"^rank 1 of 4 ended with exit code 3 before it returned"):
        ranks.run(programs.exit_on, 4, 1, 3)


def test_the_death_that_peers_complain_of_is_reported_even_when_its_news_comes_late():
    with pytest.raises(ranks.RankError, match=r"^rank 1 of 2 ended with exit code 3"):
        ranks.run(programs.claim_a_lost_peer_then_die, 2, 1.0)


def test_a_failure_well_before_a_death_is_the_first():
    with pytest.raises(ranks.RankError, match=r"^rank 3 of 4 raised ZeroDivisionError"):
        ranks.run(programs.raise_then_exit, 4, 3, 0.1)


def test_system_exit_in_a_rank_is_a_failure():
    with pytest.raises(ranks.RankError, match="rank 0 of 1 raised SystemExit: enough"):
        ranks.run(programs.stop_itself, 1)


def test_a_result_that_cannot_be_sent_back_names_the_rank():
    with pytest.raises(ranks.RankError, match="rank 1 of 2 raised TypeError: cannot pickle"):
        ranks.run(programs.return_a_lock, 2)


def check_killed_rank(tmp_path, number, timeout=30):
    """Run ranks of which one gets a signal; check the error, the time, the processes and the ports."""
    with pytest.raises(ranks.RankError) as caught:
        ranks.run(programs.signal_on, 4, 2, number, tmp_path, timeout=timeout)
    late = time.monotonic() - float((tmp_path / "sent").read_text())
    assert str(caught.value).startswith(f"rank 2 of 4 was killed by {number.name} (signal {number.value})")
    assert (caught.value.rank, caught.value.signal) == (2, number)
    assert 0 < late < PROMPT_S
    written = [file.read_text().split() for file in tmp_path.glob("*.txt")]
    assert len(written) == 4
    assert all(len(row) >= 2 for row in written), "every rank was listening on a port"
    for pid, *ports in written:
        assert not psutil.pid_exists(int(pid))
        for port in ports:
            with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
                probe.connect(("127.0.0.1", int(port)))


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_killed_rank_ends_the_run_at_once_and_leaves_no_process_and_no_port(tmp_path, number):
    check_killed_rank(tmp_path, number)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("turn", range(50))
def test_a_killed_rank_is_named_every_time(tmp_path, turn):
    check_killed_rank(tmp_path, signal.SIGKILL)


@pytest.mark.alone
def test_ranks_that_hang_are_named_with_the_place_where_they_wait():
    start = time.monotonic()
    with pytest.raises(ranks.RankTimeout) as caught:
        ranks.run(programs.never_join, 4, 2, timeout=2)
    assert 2 <= time.monotonic() - start < 2 + PROMPT_S
    text = str(caught.value)
    assert text.startswith("ranks 0, 1, 3 of 4 had not finished after 2 s")
    assert text.count("in never_join") == 3
    assert "rank_main" not in text
    assert caught.value.unfinished == [0, 1, 3]
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.alone
def test_a_stopped_rank_does_not_stop_the_deadline(tmp_path):
    start = time.monotonic()
    with pytest.raises(ranks.RankTimeout, match=r"had not finished after 2 s"):
        ranks.run(programs.signal_on, 4, 2, signal.SIGSTOP, tmp_path, timeout=2)
    assert time.monotonic() - start < 2 + PROMPT_S


def test_a_deadline_before_the_ranks_are_up_ends_them_too():
    with pytest.raises(ranks.RankTimeout, match=r"rank(s 0, 1| 0| 1) of 2 had not (started|finished)"):
        ranks.run(programs.sleep, 2, 60, timeout=1e-6)


def test_an_interrupt_of_the_parent_ends_the_ranks(tmp_path):
    def interrupt():
        wait_until(lambda: len(list(tmp_path.iterdir())) == 3, 30)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        ranks.run(programs.sleep, 3, 60, tmp_path)
    interrupter.join()
    pids = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert len(pids) == 3
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_losing_the_server_that_forks_ranks_is_an_error_and_the_next_run_has_a_new_one(tmp_path):
    def kill_server():
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 30)
        for child in psutil.Process().children():
            child.kill()

    killer = threading.Thread(target=kill_server)
    killer.start()
    with pytest.raises(ranks.RankError, match=r"rank [01] of 2 was lost with the server"):
        ranks.run(programs.sleep, 2, 60, tmp_path)
    killer.join()
    pids = [int(file.read_text()) for file in tmp_path.iterdir()]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert len(ranks.run(programs.identity, 2)) == 2


def test_an_interrupt_while_the_server_starts_leaves_nothing(tmp_path):
    ranks.server.stop_server()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))  # the server imports for a second
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ranks.run(programs.sleep, 2, 60)
    timer.join()
    assert psutil.Process().children() == []
    assert len(ranks.run(programs.identity, 2)) == 2


def test_a_rank_has_the_environment_and_the_folder_of_the_moment(tmp_path, monkeypatch):
    ranks.run(programs.identity, 1)
    monkeypatch.setenv("SCALEBOOK_MOMENT", "now")
    monkeypatch.chdir(tmp_path)
    assert ranks.run(programs.surroundings, 2) == [("now", str(tmp_path))] * 2


def test_after_a_failure_the_next_run_works():
    with pytest.raises(ranks.RankError):
        ranks.run(programs.exit_on, 2, 0, 1)
    assert len(ranks.run(programs.identity, 2)) == 2


# Bad input


def local_function():
    def inner(rank, world_size):
        pass

    return inner


def renamed(rank, world_size):
    pass


@pytest.mark.parametrize(
    ("fn", "word"),
    [
        (lambda rank, world_size: rank, "lambda"),
        (local_function(), "inside a function"),
        (functools.partial(programs.identity, 1), "plain function"),
        ("identity", "plain function"),
        (print, "plain function"),
    ],
)
def test_a_function_that_a_rank_cannot_import_is_refused(fn, word):
    with pytest.raises(ValueError, match=rf"fn = .* is not allowed.*{word}"):
        ranks.run(fn, 2)


def test_a_function_of_the_main_module_is_refused(monkeypatch):
    monkeypatch.setattr(renamed, "__module__", "__main__")
    with pytest.raises(ValueError, match="notebook cell"):
        ranks.run(renamed, 2)


def test_a_function_whose_name_leads_elsewhere_is_refused(monkeypatch):
    monkeypatch.setattr(renamed, "__qualname__", "local_function")
    with pytest.raises(ValueError, match=r"importing test_ranks\.local_function"):
        ranks.run(renamed, 2)


@pytest.mark.parametrize("world_size", [0, -1, True, 2.0, "2", None])
def test_a_world_size_that_is_no_number_of_ranks_is_refused(world_size):
    with pytest.raises(ValueError, match=r"world_size = .* at least 1"):
        ranks.run(programs.identity, world_size)


@pytest.mark.parametrize("timeout", [0, -1, True, None, "1", float("nan"), float("inf")])
def test_a_timeout_that_cannot_pass_is_refused(timeout):
    with pytest.raises(ValueError, match=r"timeout = .* seconds above 0"):
        ranks.run(programs.identity, 2, timeout=timeout)


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="backend = 'mpi' is not allowed"):
        ranks.run(programs.identity, 2, backend="mpi")


def test_nccl_wants_a_gpu_for_each_rank():
    too_many = torch.cuda.device_count() + 1
    with pytest.raises(ValueError, match=f"{too_many} ranks need a GPU each"):
        ranks.run(programs.identity, too_many, backend="nccl")


def test_an_argument_that_cannot_be_sent_is_named():
    with pytest.raises(ValueError, match=r"args\[1\] = .*lock.* picklable"):
        ranks.run(programs.identity, 2, 1, threading.Lock())


# Whole programs


def run_script(tmp_path, source, *, kill_after=None, interrupt_after=None):
    """Run a script with an empty folder for its temporary files; return it and what its family leaves behind."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(source))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    marker = f"scalebook-test-{os.getpid()}-{time.monotonic_ns()}"
    environment = {
        **os.environ, "TMPDIR": str(temporary), "SCALEBOOK_MARKER": marker,
        "PYTHONPATH": os.pathsep.join([TESTS, os.path.dirname(TESTS)]), "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(
        [sys.executable, script], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    for delay, number in ((kill_after, signal.SIGKILL), (interrupt_after, signal.SIGINT)):
        if delay is not None:
            wait_until((tmp_path / "running").exists, 20)
            time.sleep(delay)
            process.send_signal(number)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:  # a script that hangs fails its own test, and not the next ones
        process.kill()
        process.communicate()
        raise
    wait_until(lambda: not family(marker))
    return process.returncode, out, err, list(temporary.iterdir())


def family(marker):
    """Processes that carry the marker in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SCALEBOOK_MARKER") == marker:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_script_without_a_main_guard_runs_once_and_leaves_nothing(tmp_path):
    source = """
        import rank_programs
        from scalebook import ranks
        print("started")
        print([r[0] for r in ranks.run(rank_programs.identity, 4)])
        print([r[0] for r in ranks.run(rank_programs.identity, 2)])
    """
    assert run_script(tmp_path, source) == (0, "started\n[0, 1, 2, 3]\n[0, 1]\n", "", [])


SLEEPING = """
    import pathlib, rank_programs, threading, time
    from scalebook import ranks
    folder = pathlib.Path({folder!r})
    def watch():
        while len(list(folder.glob("*.txt"))) < 3:
            time.sleep(0.02)
        (folder / "running").touch()
    threading.Thread(target=watch, daemon=True).start()
    ranks.run(rank_programs.sleep, 3, 60, folder)
"""


def test_interrupting_a_script_ends_everything_it_started(tmp_path):
    code, out, err, left = run_script(tmp_path, SLEEPING.format(folder=str(tmp_path)), interrupt_after=0)
    assert code == -signal.SIGINT
    assert out == ""
    assert err.count("KeyboardInterrupt") == 1
    assert left == []


def test_killing_a_script_ends_everything_it_started(tmp_path):
    left = run_script(tmp_path, SLEEPING.format(folder=str(tmp_path)), kill_after=0)
    assert left == (-signal.SIGKILL, "", "", [])


def test_ranks_run_from_a_notebook_and_print_nothing_into_it(tmp_path):
    cells = [
        f"import sys\nsys.path.insert(0, {os.path.dirname(__file__)!r})",
        "import rank_programs\nfrom scalebook import ranks\nranks.run(rank_programs.talk, 2)",
        "[result[0] for result in ranks.run(rank_programs.identity, 4)]",
        "def in_a_cell(rank, world_size):\n    return rank\n"
        "try:\n    ranks.run(in_a_cell, 2)\nexcept ValueError as error:\n    print(error)",
        "import psutil\n[child for server in psutil.Process().children() for child in server.children()]",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    execute.start(nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}))
    outputs = [cell.outputs for cell in notebook.cells]
    assert outputs[1][0]["data"]["text/plain"] == "[None, None]"
    assert len(outputs[1]) == 1
    assert outputs[2][0]["data"]["text/plain"] == "[0, 1, 2, 3]"
    assert "move it to a file" in outputs[3][0]["text"]
    assert outputs[4][0]["data"]["text/plain"] == "[]"


def test_a_lab_runs_by_itself_and_under_torchrun(tmp_path):
    expected = "3 ranks: [3, 3, 3]\n"
    own = [sys.executable, "-m", "scalebook.labs.hello", "--ranks", "3"]
    # torchrun leaves a folder of logs behind, so it is told where; --standalone takes a free port.
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--log-dir", str(tmp_path),
                "--nproc-per-node", "3", *own[1:]]
    for command in (own, torchrun):
        assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == expected
