"""Each system that the book is about stands on its page, and the page leads to what is there."""

import re

import pytest

from scalebook.book import build, cells

TEXT = (build.ROOT / "chapters" / "systems.md").read_text(encoding="utf-8")
ROWS = {match[1]: match[0] for match in re.finditer(r"^\| \*\*(.+?)\*\* \|.*$", TEXT, re.M)}
NAMES = ["AWQ", "BLOOM", "DBRX", "DeepSeek-V2", "DeepSeek-V3", "DeepSpeed", "ExLlamaV2", "FSDP", "GPTQ", "GPipe",
         "GShard", "Llama 3 405B", "Llama 3 70B", "llama.cpp", "Megatron-Core", "Megatron-LM",
         "Megatron-Turing NLG", "Mesh-TensorFlow", "Mixtral 8x22B", "Mixtral 8x7B", "NeMo", "Ollama", "PiPPy",
         "PipeDream", "Switch", "TensorRT-LLM", "torch.distributed.pipelining", "vLLM", "ZeRO++", "AutoGPTQ", "gpt-oss"]
FILES = re.findall(r"`((?:tests|scalebook)/[\w/.]+)`", TEXT)


@pytest.mark.parametrize("name", NAMES)
def test_a_system_has_a_row(name):
    assert name in ROWS


@pytest.mark.parametrize("name", ROWS)
def test_a_row_leads_to_cells_that_exist(name):
    places = re.findall(r"\{cell\}`(\d)#([\w-]+)`", ROWS[name])
    assert places
    assert any(cells.find(int(chapter), cell) for chapter, cell in places)
    for chapter, cell in places:
        assert cells.find(int(chapter), cell) or int(chapter) == 6
    assert ROWS[name].count(" | ") == 2


@pytest.mark.parametrize("path", FILES)
def test_a_file_that_is_named_exists(path):
    assert (build.ROOT / path).is_file()


def test_most_systems_are_run_or_recomputed_and_not_only_named():
    def shown(row):
        places = [(int(chapter), cell) for chapter, cell in re.findall(r"\{cell\}`(\d)#([\w-]+)`", row)]
        found = [cells.find(*place) for place in places if cells.path_of(place[0])]
        missing = len(found) < len(places)  # a chapter that is not written yet
        return missing or "`tests/" in row or any(
            cell["cell_type"] == "code" and "assert " in cells.text_of(cell) for cell in found)

    assert {name for name, row in ROWS.items() if not shown(row)} == {"Mesh-TensorFlow", "NeMo", "PiPPy"}
