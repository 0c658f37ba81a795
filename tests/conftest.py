"""What all tests share: a measurement that was taken more than once is told of, whether its test passed or not."""

import pytest

AGAIN = "measured again"


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
