"""The command lines: each says what it does, explains every argument, and shows a call that its parser accepts."""

import argparse
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

import scalebook.labs

FOLDER = Path(scalebook.labs.__file__).parent
LABS = sorted(path.stem for path in FOLDER.glob("*.py")
              if re.search(r"^def main\(", path.read_text(encoding="utf-8"), re.MULTILINE))
COMMANDS = [*(f"scalebook.labs.{name}" for name in LABS), "scalebook.planner.__main__"]


class Reached(Exception):
    """A program's main function asked for its arguments."""


@pytest.fixture(params=COMMANDS, ids=lambda name: name.removeprefix("scalebook."))
def command(request, monkeypatch):
    """The module's name as `python -m` takes it, and the parser that its main function makes."""
    module = importlib.import_module(request.param)
    monkeypatch.setattr(sys, "argv", [module.__file__])
    with monkeypatch.context() as patch:
        def reached(parser, *_):
            raise Reached(parser)

        patch.setattr(argparse.ArgumentParser, "parse_args", reached)
        with pytest.raises(Reached) as stopped:
            module.main()
    return request.param.removesuffix(".__main__"), stopped.value.args[0]


def test_there_are_command_lines():
    assert len(LABS) >= 15


def test_every_argument_is_explained_and_the_program_is_named(command):
    name, parser = command
    text = parser.format_help()
    assert text.startswith(f"usage: python -m {name} ")
    for action in parser._actions:
        said = re.sub(r"\(?default:.*", "", action.help or "").strip()
        assert said, f"{name}: {action.option_strings} is not explained"


def test_the_example_in_the_help_is_one_that_the_parser_accepts(command):
    name, parser = command
    shown = [call.split("  ")[0] for call in
             re.findall(rf"python -m {re.escape(name)}(?![\w.])([^`#\n]*)", parser.description)]
    assert shown, f"the help of {name} shows no call"
    for call in shown:
        parser.parse_args(shlex.split(call))


def test_every_command_that_starts_ranks_lets_the_backend_be_chosen(command):
    name, parser = command
    starts = "ranks.launch(" in Path(importlib.import_module(name).__file__).read_text(encoding="utf-8")
    assert starts == any("--backend" in action.option_strings for action in parser._actions)


@pytest.mark.parametrize(("name", "arguments", "words"), [
    ("hello", ["--ranks", "0"], "world_size = 0"),
    ("collapse", ["--processes", "0"], "processes = 0"),
    ("saved_activations", ["--heads", "3"], "3"),
])
def test_bad_input_is_one_line_and_exit_status_2(name, arguments, words, monkeypatch, capsys):
    module = importlib.import_module(f"scalebook.labs.{name}")
    monkeypatch.setattr(sys, "argv", [module.__file__, *arguments])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
