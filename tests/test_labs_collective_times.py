"""All-reduces are timed on real processes, and alpha and omega are fitted as a weighted least-squares fit does it."""

import doctest
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook.formulas.collectives import time_all_reduce
from scalebook.labs import collective_times as lab

ALPHAS, OMEGAS = st.floats(1e-7, 1e-1), st.floats(1e6, 1e12)


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(lab)
    assert result.attempted > 0
    assert result.failed == 0


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 64), ALPHAS, OMEGAS)
def test_the_fit_finds_the_alpha_and_omega_that_times_were_made_with(size, alpha, omega):
    sizes = tuple(int(size * alpha * omega * share) + 4 * k for k, share in enumerate((0.01, 0.1, 1, 10, 100)))
    fit = lab.fit_times(size, sizes, [float(time_all_reduce(R=size, S=s, alpha=alpha, omega=omega)) for s in sizes])
    assert fit.alpha == pytest.approx(alpha, rel=1e-6)
    assert fit.omega == pytest.approx(omega, rel=1e-6)
    assert max(map(abs, fit.residuals)) < 1e-9


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 8), st.lists(st.floats(0.7, 1.4), min_size=8, max_size=8))
def test_with_noise_it_is_the_weighted_fit_of_numpy(size, noise):
    """`np.polyfit` multiplies each residual by its weight: 1 / time makes it relative."""
    alpha, omega = 1e-4, 1e9
    exact = [float(time_all_reduce(R=size, S=s, alpha=alpha, omega=omega)) for s in lab.SIZES]
    seconds = np.multiply(exact, noise)
    fit = lab.fit_times(size, lab.SIZES, tuple(seconds))
    slope, intercept = np.polyfit(lab.SIZES, seconds, 1, w=1 / seconds)
    assert fit.seconds(0) == pytest.approx(intercept, rel=1e-6)
    assert fit.seconds(2**20) - fit.seconds(0) == pytest.approx(slope * 2**20, rel=1e-6)
    for nbytes, measured, residual in zip(lab.SIZES, seconds, fit.residuals, strict=True):
        assert residual == pytest.approx(fit.seconds(nbytes) / measured - 1, abs=1e-6)


@pytest.fixture(scope="module", params=[1, 2, 4])
def measured(request):
    return request.param, lab.measure(request.param, sizes=(1024, 2**24), repeats=5)


def test_every_repeat_at_every_size_is_timed_for_both_ways(measured):
    size, found = measured
    assert set(found) == {"PyTorch", "our ring"}
    for times in found.values():
        assert times.ranks == size
        assert times.sizes == (1024, 2**24)
        assert [len(row) for row in times.repeats] == [5, 5]
        assert all(0 < shortest <= median < 30 for shortest, median in zip(times.seconds, times.medians, strict=True))


def test_sixteen_thousand_times_the_bytes_take_longer(measured):
    size, found = measured
    if size > 1:
        assert all(times.seconds[1] > times.seconds[0] for times in found.values())


def test_a_fit_through_two_sizes_meets_both(measured):
    size, found = measured
    if size > 1:
        for times in found.values():
            fit = times.fit()
            assert max(map(abs, fit.residuals)) < 1e-6
            assert [fit.seconds(nbytes) for nbytes in times.sizes] == pytest.approx(list(times.seconds))


def test_a_time_is_that_of_the_slowest_rank():
    times = lab.slowest(2, (4, 8), [[[1, 5], [2, 2]], [[3, 4], [1, 1]]])
    assert times.repeats == ((3, 5), (2, 2))
    assert times.seconds == (3, 2)
    assert times.medians == (4, 2)


@pytest.mark.parametrize(("arguments", "message"), [
    ((1, (4, 8), (1.0, 2.0)), "size = 1 is not allowed; size must be at least 2"),
    ((2, (4, 4), (1.0, 2.0)), r"sizes = \(4, 4\) is not allowed"),
    ((2, (4, 8), (1.0,)), r"sizes = \(4, 8\) is not allowed"),
    ((2, (4, 8), (0.0, 1.0)), "every time must be above 0"),
    ((2, (4, 8), (2.0, 1.0)), "the best fit has alpha = 1.5 s and -0.25 s a byte"),
])
def test_what_cannot_be_fitted_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        lab.fit_times(*arguments)


@pytest.mark.parametrize(("options", "message"), [
    ({"size": 0}, "size = 0 is not allowed"), ({"sizes": (6,)}, r"sizes = \(6,\) is not allowed"),
    ({"sizes": (4, True)}, "sizes = "), ({"repeats": 0}, "repeats = 0 is not allowed"),
])
def test_bad_input_is_named_before_a_process_starts(options, message):
    with pytest.raises(ValueError, match=message):
        lab.measure(**options)


def test_the_lab_prints_each_time_beside_the_fitted_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab", "--ranks", "2", "--repeats", "2"])
    lab.main()
    printed = capsys.readouterr().out
    assert printed.count("alpha") == 2
    assert printed.count("fitted") == 2 * len(lab.SIZES)


def test_one_rank_is_refused_on_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab", "--ranks", "1"])
    with pytest.raises(SystemExit) as ended:
        lab.main()
    assert ended.value.code == 2
    assert "size = 1 is not allowed" in capsys.readouterr().err
