"""Where a Chromium is looked for, also on a Mac, and what is said where there is none."""

from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from scalebook.book import chromium


@pytest.fixture(autouse=True)
def _a_machine_without_any(monkeypatch, tmp_path):
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(chromium, "MAC", ())
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "nothing"))


def program(folder, name):
    folder.mkdir(parents=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_the_program_inside_a_mac_s_application_is_found(monkeypatch, tmp_path):
    where = program(tmp_path / "Google Chrome.app" / "Contents" / "MacOS", "Google Chrome")
    monkeypatch.setattr(chromium, "MAC", ("/nowhere/Chromium", where))
    assert chromium.find_chromium() == where


def test_the_one_that_is_named_goes_before_all(monkeypatch, tmp_path):
    monkeypatch.setattr(chromium, "MAC", (program(tmp_path / "mac", "Chromium"),))
    named = program(tmp_path / "own", "chrome")
    monkeypatch.setenv("CHROMIUM", named)
    assert chromium.find_chromium() == named


def test_a_mac_s_application_where_its_program_is_meant_is_refused_in_words(monkeypatch, tmp_path):
    program(tmp_path / "Google Chrome.app" / "Contents" / "MacOS", "Google Chrome")
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "Google Chrome.app"))
    with pytest.raises(ValueError, match=r"CHROMIUM = '.*Google Chrome\.app' .*ends in Google Chrome\.app/Contents/"):
        chromium.find_chromium()


def test_without_one_and_without_a_way_to_get_one_the_command_says_what_to_do(monkeypatch):
    assert chromium.find_chromium() is None
    monkeypatch.setattr(chromium, "get_chromium", lambda: None)
    with pytest.raises(SystemExit, match=r"install Chromium or Google Chrome, or set CHROMIUM .*Contents/MacOS/"):
        chromium.main()


def test_playwright_s_own_is_found_while_playwright_runs():
    with sync_playwright() as running:
        assert chromium.find_chromium(running) is None
        with pytest.raises(RuntimeError, match="no Chromium: run"), chromium.chromium(playwright=running):
            pass
        program(Path(running.chromium.executable_path).parent, Path(running.chromium.executable_path).name)
        assert chromium.find_chromium(running) == running.chromium.executable_path
