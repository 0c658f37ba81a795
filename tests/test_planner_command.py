"""The command prints the best plans and why the next ones lose; nonsense in a file gets an error with its line."""

import subprocess
import sys

import pytest

from scalebook import published
from scalebook.planner import __main__ as command
from scalebook.planner import files
from scalebook.planner.clusters import named

MODEL = """name = "small"
vocabulary = 32000
d_model = 2048
layers = 16
heads = 16
kv_heads = 4
head_dim = 128
d_ff = 8192
context = 4096
"""
CLUSTER = """gpus = 16
machine = "a100"
memory_bytes = 40e9
"""


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)
    return write


def answer(capsys, *arguments):
    command.main(list(arguments))
    return capsys.readouterr().out


def test_llama_3_70b_on_512_h100s_from_the_shell():
    done = subprocess.run([sys.executable, "-m", "scalebook.planner", "--model", "llama-3-70b", "--gpus", "512",
                           "--gpu", "h100"], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Llama-3-70B on 512 x NVIDIA H100")
    assert sum(line.startswith("Best: TP") for line in lines) == 1
    assert sum(line.startswith("   loses ") for line in lines) == 4
    assert any("ZeRO-2 with a pipeline" in line for line in lines)
    assert any("GB on a GPU of 80 GB" in line for line in lines)
    assert any("TP = 16 crosses the node of 8 GPUs" in line for line in lines)


def test_a_model_and_a_cluster_from_files(write, capsys):
    printed = answer(capsys, "--model", write("m.toml", MODEL), "--cluster", write("c.toml", CLUSTER), "--top", "2")
    assert printed.startswith("small on 16 x NVIDIA A100")
    assert "on a GPU of 40 GB" in printed


def test_what_the_files_say_is_what_is_read(write):
    shape = files.read_model(write("m.toml", MODEL))
    assert (shape.name, shape.layers, shape.kv_heads) == ("small", 16, 4)
    cluster = files.read_cluster(write("c.toml", CLUSTER))
    assert (cluster.gpus, cluster.machine.memory_bytes) == (16, 40e9)
    assert cluster.machine.peak_flops == published.machine("A100-80GB").peak_flops
    own = 'gpus = 4\npeak_flops = 1e12\nmemory_bytes = 1e9\nmemory_bandwidth = 1e9\nnvlink_one_way = 1e9\n' \
          'internode_node = 1e9\ngpus_per_node = 4\nefficiency = 0.5\n'
    assert files.read_cluster(write("own.toml", own)).efficiency == 0.5


@pytest.mark.parametrize(("old", "new", "line", "words"), [
    ("layers = 16", "layers = -3", 4, "layers = -3 is not allowed; it must be a whole number"),
    ("heads = 16", 'heads = "many"', 5, "heads = 'many' is not allowed"),
    ("kv_heads = 4", "kv_heads = 5", 6, "kv_heads = 5 is not allowed; it must be a divisor of heads"),
    ("d_ff = 8192", "d_fff = 8192", 8, "'d_fff' is not a field"),
    ("d_ff = 8192", "d_ff = ", 8, "it is not TOML"),
    ("layers = 16", "layers = 16\nlayers = 17", 5, "it is not TOML"),
    ("context = 4096", "context = 4096\n[more]\nx = 1", 10, "'more' is not a field"),
    ("context = 4096", "context = nan", 9, "context = nan is not allowed"),
    ("context = 4096", "experts = 8", 9, "top_k = 0 is not allowed; it must be at least 1 when experts"),
    ("layers = 16", "layers = [16]", 4, r"layers = \[16\] is not allowed"),
    ("layers = 16", f"layers = {10**22}", 4, "layers = 10000000000000000000000 is not allowed; it must be at most"),
    ("context = 4096", "route_scale = nan", 9, "route_scale = nan is not allowed; it must be a finite number"),
    ("vocabulary = 32000", 'note = """\nlayers = 7\n"""\nvocabulary = -1', 5, "vocabulary = -1 is not allowed"),
    ("layers = 16", 'note = """\nlayers = 7\n"""\nlayers = -1', 7, "layers = -1 is not allowed"),
])
def test_nonsense_in_a_model_file_gets_an_error_with_the_line(write, old, new, line, words):
    path = write("m.toml", MODEL.replace(old, new))
    with pytest.raises(ValueError, match=words) as caught:
        files.read_model(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")


@pytest.mark.parametrize(("old", "new", "line", "words"), [
    ("gpus = 16", "gpus = 12", 1, "gpus = 12 is not allowed"),
    ("gpus = 16", "gpus = true", 1, "gpus = True is not allowed"),
    ('machine = "a100"', 'machine = "abacus"', 2, "no GPU is named 'abacus'"),
    ("memory_bytes = 40e9", "memory_bytes = -1", 3, "memory_bytes = -1 is not allowed"),
    ("memory_bytes = 40e9", 'nvlink_one_way = "fast"', 3, "nvlink_one_way"),
    ("memory_bytes = 40e9", "efficiency = 2", 3, "efficiency = 2 is not allowed"),
    ("memory_bytes = 40e9", "watts = 400", 3, "'watts' is not a field"),
    ("memory_bytes = 40e9", "internode_node = nan", 3, "internode_node = nan is not allowed; it must be a finite"),
    ("memory_bytes = 40e9", "peak_flops = inf", 3, "peak_flops = inf is not allowed"),
    ("memory_bytes = 40e9", "nvlink_one_way = 1e-300", 3, "nvlink_one_way = 1e-300 is not allowed; it must be"),
    ("memory_bytes = 40e9", "gpus_per_node = 1.5", 3, "gpus_per_node = 1.5 is not allowed; it must be a whole number"),
    ('machine = "a100"', 'machine = "v100"', 2, "peak_flops is not known"),
])
def test_nonsense_in_a_cluster_file_gets_an_error_with_the_line(write, old, new, line, words):
    path = write("c.toml", CLUSTER.replace(old, new))
    with pytest.raises(ValueError, match=words) as caught:
        files.read_cluster(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")


@pytest.mark.parametrize("text", ["", "layers = 2"])
def test_a_field_that_is_missing_is_named(write, text):
    with pytest.raises(ValueError, match="'vocabulary' is missing"):
        files.read_model(write("m.toml", text))
    with pytest.raises(ValueError, match="'gpus' is missing"):
        files.read_cluster(write("c.toml", ""))


def test_a_file_that_is_not_there_or_is_no_text_is_said(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        files.read_model(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not text in UTF-8"):
        files.read_cluster(tmp_path / "bytes.toml")


@pytest.mark.parametrize(("arguments", "words"), [
    (["--model", "llama-9", "--gpus", "8", "--gpu", "h100"], "no model is named 'llama-9'; the nearest are 'Llama-"),
    (["--model", "llama-3-8b", "--gpus", "0", "--gpu", "h100"], "gpus = 0"),
    (["--model", "llama-3-8b", "--gpus", "8", "--gpu", "x"], "no GPU is named 'x'"),
    (["--model", "llama-3-8b"], "give --gpus and --gpu, or --cluster"),
    (["--model", "llama-3-8b", "--gpus", "8", "--cluster", "c.toml"], "in place of"),
    (["--model", "llama-3-8b", "--gpus", "8", "--gpu", "h100", "--batch", "0"], "batch = 0"),
    (["--model", "llama-3-8b", "--gpus", "8", "--gpu", "h100", "--top", "0"], "top = 0"),
    (["--model", "none.toml", "--gpus", "8", "--gpu", "h100"], "No such file"),
])
def test_what_is_not_allowed_ends_with_one_line_and_status_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_names_are_found_whatever_their_case():
    assert named("model", "LLAMA-3-8b", published.models()) == "Llama-3-8B"
    with pytest.raises(ValueError, match="no GPU is named ''"):
        named("GPU", "", published.machines())


def test_the_mark_that_some_editors_put_before_a_file_is_no_part_of_it(tmp_path):
    (tmp_path / "m.toml").write_text("\ufeff" + MODEL, encoding="utf-8")
    assert files.read_model(tmp_path / "m.toml").layers == 16


def test_degrees_that_no_layout_has_are_said(capsys):
    printed = answer(capsys, "--model", "llama-3-8b", "--gpus", "8", "--gpu", "h100", "--tp", "3", "--dp", "2")
    assert "No way to lay a model of 32 layers over 8 GPUs has tp = 3, dp = 2" in printed


def test_no_plan_at_all_is_an_answer_too(capsys):
    printed = answer(capsys, "--model", "llama-3-405b", "--gpus", "8", "--gpu", "h100", "--batch", "8")
    assert "0 plans can be run" in printed
    assert "Faster, but out" in printed
