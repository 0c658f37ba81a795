"""What the book claims and what checks it, read from the sources: the page `{claims}`.

Nothing on the page is written by hand but the list of oracles: the asserts are those of the notebooks' cells, the tests
are named for what they prove, formulas and published numbers bring their sources. The page is made at every build from
the files as they are, in a fixed order.
"""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import scalebook.formulas
from scalebook import published
from scalebook.book import cells, exercise_list, symbols
from scalebook.book.notebooks import CHAPTERS, chapters
from scalebook.published import files

TESTS = CHAPTERS.parent / "tests"
# What a test file's name says of its chapter; a file that none of these fits is about the book and its tools.
SUBJECTS = {0: "collective", 1: "moe|collapse|expert", 2: "quantiz", 3: "tensor_parallel|saved_activations",
            4: "pipeline", 5: "zero", 6: "planner|mesh|three_d"}
TABLES = {1: ("moe",), 2: ("quantization",), 3: ("tensor_parallel",), 4: ("pipeline",), 5: ("zero",),
          6: ("mesh", "elsewhere")}
# What is not ours and says the same: its name, what it says, and how a file that asks it is known.
ORACLES = (
    ("PyTorch's autograd", "gradients", r"\.backward\(|autograd"),
    ("PyTorch's FlopCounterMode", "FLOPs that really run", "FlopCounterMode"),
    ("PyTorch's collectives and gloo", "what ranks receive", r"dist\.all_reduce|collective_comparison|move_data"),
    ("PyTorch's DTensor and CommDebugMode", "tensor parallelism and its messages",
     "CommDebugMode|tensor_parallel_torch"),
    ("torch.distributed.pipelining", "orders of operations, gradients, messages",
     r"distributed\.pipelining|torch_1f1b_step"),
    ("PyTorch's DDP, ZeroRedundancyOptimizer and FSDP", "training with sharded states", "zero_torch|fully_shard"),
    ("PyTorch's AdamW", "an optimizer's steps", "AdamW"),
    ("transformers", "gates, layers, losses and parameters of released models", r"\btransformers\b"),
    ("gguf", "llama.cpp's blocks, byte for byte", r"\bgguf\b"),
    ("AutoGPTQ", "the layout of GPTQ checkpoints", "(?i)autogptq"),
    ("GPTQ's own loop, transcribed", "codes of the paper's program", "gptq_transcription"),
    ("SymPy", "derivations, symbol by symbol", r"\bsympy\b"),
    ("Vega", "the expressions that the sliders evaluate", "vega_oracle|VegaOracle"),
    ("Hypothesis", "claims about all inputs, on hundreds of drawn ones", r"\bhypothesis\b"),
    ("All possibilities, one by one", "what is best, by trying everything", "(?i)brute_force|permutations|itertools"),
    ("Published tables", "what others printed", r"published\.(table|model|machine)"),
)


@dataclass(frozen=True)
class Cell:
    """A code cell with asserts: its chapter, id, the heading it stands under, its asserts as written."""

    chapter: int
    name: str
    heading: str
    asserts: tuple
    measured: bool


@dataclass(frozen=True)
class ProvingFile:
    """A file of tests: its path, what it says of itself, its chapter (None: the book itself), the claims it proves."""

    path: str
    about: str
    chapter: int | None
    claims: tuple


@dataclass(frozen=True)
class Chapter:
    """What one chapter claims, and what it rests on."""

    number: int
    path: Path
    title: str
    cells: tuple
    explorers: int
    checked: int
    formulas: tuple
    tables: tuple

    @cached_property
    def asserts(self):
        """The number of its asserts."""
        return sum(len(cell.asserts) for cell in self.cells)


def asserting_cells(path):
    """Return the code cells of a notebook that assert something, in order.

    >>> [cell.name for cell in asserting_cells(cells.path_of(5)) if cell.name.startswith("trap")]
    ['trap-count', 'trap-hide']
    """
    found = []
    for cell in cells.read(path):
        if cell["cell_type"] == "code":
            asserts = _asserts(cells.text_of(cell))
            if asserts:
                number = cells.number_of(path)
                found.append(Cell(number, cell["id"], cells.heading_of(number, cell["id"], path.parent), asserts,
                                  "nbval-ignore-output" in cell["metadata"].get("tags", [])))
    return found


def _asserts(source):
    """The conditions of a cell's asserts, as code on one line, in order."""
    tree = ast.parse(re.sub(r"^[%!]", "# ", source, flags=re.M))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return tuple(" ".join(ast.unparse(node.test).split()) for node in sorted(found, key=lambda node: node.lineno))


def of_chapter(path, exercises):
    """Return what the chapter in a notebook claims; `exercises` are its exercises."""
    number = cells.number_of(path)
    listed = cells.read(path)
    # A chapter's modules, and those named after one: zero_estimators beside zero.
    modules = re.compile("|".join(rf"{module}(_\w+)?" for module in symbols.modules(number)))
    formulas = tuple(formula for name, formula in scalebook.formulas.catalogue().items()
                     if modules.fullmatch(name.split(".")[0]))
    shown = sum(cell["cell_type"] == "code" and bool(re.search(r"^explore\(", cells.text_of(cell), re.M))
                for cell in listed)
    return Chapter(number, path, cells.title_of(path), tuple(asserting_cells(path)), shown,
                   sum(exercise.checked for exercise in exercises), formulas, tuple(tables(*TABLES.get(number, ()))))


def all_chapters(folder=CHAPTERS):
    """Return what each chapter claims, in order."""
    exercises = exercise_list.of_all_chapters(folder)
    return [of_chapter(path, exercises[path]) for path in chapters(folder)]


def tables(*subjects):
    """Return the published tables of some subjects: (name, rows, source).

    >>> tables("zero")[0][0]
    'zero_table1'
    """
    found = [(name, published.table(name)) for subject in subjects for name in files.read(subject)]
    return [(name, len(table.rows), table.source) for name, table in found]


def proving_files(folder=TESTS):
    """Return the files of tests, by name."""
    return [proving_file(path, folder) for path in sorted(folder.rglob("test_*.py"))]


def proving_file(path, folder=TESTS):
    """Return what a file of tests proves."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    chapter = next((number for number, words in SUBJECTS.items() if re.search(words, path.stem)), None)
    about = (ast.get_docstring(tree) or "").partition("\n\n")[0]
    return ProvingFile(str(path.relative_to(folder.parent)), " ".join(about.split()), chapter,
                    tuple(in_words(name) for name in names))


def in_words(name):
    """Return a test's name as the claim that it is.

    >>> in_words("test_1f1b_peak_is_stages_minus_rank")
    '1f1b peak is stages minus rank'
    """
    words = name.removeprefix("test_").replace("_", " ")
    return words[0].upper() + words[1:]


def oracles(folder=TESTS, notebooks=CHAPTERS):
    """Return each oracle with what it says, the test files and the chapters that ask it."""
    texts = {str(path.relative_to(folder.parent)): path.read_text(encoding="utf-8")
             for path in sorted(folder.rglob("*.py")) if path.name.startswith("test_")}
    code = {cells.number_of(path): "\n".join(cells.text_of(cell) for cell in cells.read(path)
                                          if cell["cell_type"] == "code") for path in chapters(notebooks)}
    return [(name, says, [file for file, text in texts.items() if re.search(words, text)],
             [number for number, text in code.items() if re.search(words, text)]) for name, says, words in ORACLES]
