"""What the command lines of the labs share."""

import argparse
import contextlib
import os


def parser_of(words):
    """A parser that shows `words`, a module's docstring, as they are written.

    >>> parser_of("What it does.").parse_args([])
    Namespace()
    """
    return argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_ranks(parser):
    """Give a parser the option `--ranks`: 4 processes unless `torchrun` has started another number."""
    started = int(os.environ.get("WORLD_SIZE", 4))
    parser.add_argument("--ranks", type=int, default=started, help="processes (default: 4, or as torchrun started)")


@contextlib.contextmanager
def errors_in_words(parser):
    """Inside the block a ValueError becomes the parser's error, and Ctrl-C ends the program without a traceback."""
    try:
        yield
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
