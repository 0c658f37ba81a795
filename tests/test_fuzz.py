"""Every public function, given what is wrong: a right answer or a ValueError that names the argument.

Never another exception, and never a NaN that nobody asked for. A public function without a good call to spoil fails
here, so that a new one cannot be forgotten (`fuzz/public.py` finds them).
"""

import contextlib
import inspect
import re
import resource
import signal
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from fuzz.good import ALSO, CALLED, GOOD, NAN_PASSES, NOT_FUZZED
from fuzz.public import found_at, public_calls
from fuzz.values import ALIENS, endless, nans, near
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalebook.ranks import processes

PATIENCE_S = 10  # for one call: all take milliseconds
ROOM_BYTES = 4 << 30  # of address space, beside what is there when the tests begin
EXAMPLES = settings().max_examples // 5


class StartedError(Exception):
    """The arguments were accepted, and ranks would be started now."""


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    """A process group of this process alone, and no ranks besides."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    patch = pytest.MonkeyPatch()

    def started():
        raise StartedError

    patch.setattr(processes, "_open_store", started)
    yield
    patch.undo()
    dist.destroy_process_group()


@pytest.fixture(scope="module", autouse=True)
def _no_more_memory():
    """Have a call that asks for all of the machine's memory fail, where the system can be told so."""
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@contextlib.contextmanager
def in_time():
    """Raise TimeoutError in a call that goes on and on."""
    def late(*_):
        raise TimeoutError(f"no answer in {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, late)
    timer = signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def call(name, arguments):
    """Call a public name; a method on its object."""
    given = dict(arguments)
    *_, method = name.split(".")
    try:
        if "self" in given:
            of = given.pop("self")
            return of(**given) if method == "forward" else getattr(of, method)(**given)
        return found_at(name)(**given)
    except StartedError:
        return None


def complaint(name, arguments, spoiled):
    """What is wrong with what the function does with these arguments, in words; None where it does what it should."""
    try:
        with in_time():
            answer = call(name, arguments)
    except ValueError as error:
        words = set(re.findall(r"\w+", str(error)))
        known = set(arguments) | set(inspect.signature(found_at(name)).parameters) | ALSO.get(name, set())
        if name in CALLED:
            known.add(arguments["name"])
        if (known | set(map(without_suffix, known))) & words:
            return None
        return f"ValueError names no argument: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if nans(answer) and not (name in NAN_PASSES and any(endless(arguments[one]) for one in spoiled)):
        return f"a silent NaN in {answer!r:.200}"
    return None


def without_suffix(name):
    """The name of an argument without the dimensions of the tensor: tokens_SB is tokens."""
    return re.sub(r"_[A-Za-z]*[A-Z][A-Za-z]*$", "", name)


def inputs(name):
    """The arguments that are spoiled."""
    return [one for one in GOOD[name]() if one != "self" and not (one == "name" and name in CALLED)]


def said(arguments, spoiled):
    """The spoiled arguments, for a failure."""
    return ", ".join(f"{name} = {arguments[name]!r:.120}" for name in spoiled)


def test_every_public_function_is_fuzzed_or_has_a_reason_not_to_be():
    calls = set(public_calls())
    assert calls - set(GOOD) - set(NOT_FUZZED) == set(), "these need a good call in tests/fuzz/good.py"
    assert set(NOT_FUZZED) - calls == set(), "these are no longer there, or no longer public"
    assert set(GOOD) & set(NOT_FUZZED) == set()


@pytest.mark.parametrize("name", GOOD)
def test_a_good_call_is_good(name):
    assert not nans(call(name, GOOD[name]()))


@pytest.mark.parametrize("name", GOOD)
def test_no_argument_can_be_what_it_is_not(name):
    """Each argument in turn is each value of no kind at all."""
    found = []
    for argument in inputs(name):
        for words, make in ALIENS.items():
            arguments = GOOD[name]() | {argument: make()}
            wrong = complaint(name, arguments, [argument])
            if wrong:
                found.append(f"{argument} is {words}: {wrong:.200}")
    assert found == [], "\n".join([f"{len(found)} in {name}", *found])


@pytest.mark.parametrize("name", GOOD)
def test_arguments_that_are_nearly_right_are_told_apart(name):
    @settings(deadline=None, max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data):
        arguments = GOOD[name]()
        spoiled = data.draw(st.lists(st.sampled_from(inputs(name)), min_size=1, max_size=2, unique=True))
        for argument in spoiled:
            arguments[argument] = data.draw(near(arguments[argument]))
        wrong = complaint(name, arguments, spoiled)
        assert wrong is None, f"{name}({said(arguments, spoiled)}): {wrong}"

    check()
