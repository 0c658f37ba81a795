"""What the command lines of the labs share."""

import argparse
import contextlib
import os
import sys
from pathlib import Path


def parser_of(words):
    """A parser that shows `words`, a module's docstring, as they are written.

    >>> parser_of("What it does.").parse_args([])
    Namespace()
    """
    started = Path(sys.argv[0])
    program = f"python -m scalebook.labs.{started.stem}" if started.parent == Path(__file__).parent else None
    return argparse.ArgumentParser(program, description=words, formatter_class=argparse.RawDescriptionHelpFormatter)


def parser_of_ranks(words):
    """A parser with the options of a lab that takes no others: how many processes, and what they talk through."""
    parser = parser_of(words)
    add_ranks(parser)
    add_backend(parser)
    return parser


def add_ranks(parser):
    """Give a parser the option `--ranks`: 4 processes unless `torchrun` has started another number."""
    started = int(os.environ.get("WORLD_SIZE", 4))
    parser.add_argument("--ranks", type=int, default=started, help="processes (default: 4, or as torchrun started)")


def add_backend(parser):
    """Give a parser the option `--backend`: what the processes talk through, None for what `ranks.run` chooses."""
    parser.add_argument("--backend", choices=("gloo", "nccl"),
                        help="gloo: on the processor; nccl: a GPU for each rank (default: nccl if there are as many)")


@contextlib.contextmanager
def errors_in_words(parser):
    """Inside the block a ValueError becomes the parser's error, and Ctrl-C ends the program without a traceback."""
    try:
        yield
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
