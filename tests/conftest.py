"""What all tests share.

A measurement that was taken more than once is told of, whether its test passed or not. Hypothesis draws the same
examples in every run, so that a check that passed passes again; `make test-all` draws others.
"""

import os

import pytest
from hypothesis import settings

AGAIN = "measured again"
settings.register_profile("the same every time", derandomize=True)
settings.register_profile("others every time", derandomize=False)
settings.load_profile("others every time" if os.environ.get("SCALEBOOK_OTHER_EXAMPLES") else "the same every time")


@pytest.fixture
def measured_again(record_property):
    """A function to call with what was measured, in words, when a test measures again because it was too slow."""
    return lambda found: record_property(AGAIN, found)


def pytest_terminal_summary(terminalreporter):
    """Print every measurement that was taken again."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    notes = [f"{report.nodeid}: {found}" for report in reports if report.when == "call"
             for name, found in report.user_properties if name == AGAIN]
    if notes:
        terminalreporter.section("measured again, since other work may have slowed the machine")
        for note in notes:
            terminalreporter.line(note)
