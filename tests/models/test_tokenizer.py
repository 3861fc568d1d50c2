"""A tokenizer that is loaded by its class alone is the one that transformers finds, and brings no PyTorch along."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from relax_core.api.context import ModelSource
from relax_core.models.tokenizer import load_tokenizer, tokenizer_class

TEXTS = ("2 + 2 = 4", "Grüße, 世界!\n", "", " <|endoftext|> \t")

PROGRAM = """
import json, sys
from pathlib import Path
from relax_core.api.context import ModelSource
from relax_core.models.prompts import PromptCodec
codec = PromptCodec(ModelSource(Path(sys.argv[1]), tokenizer=sys.argv[2]))
ids = [codec.tokenizer(text)["input_ids"] for text in json.loads(sys.argv[3])]
print(json.dumps([ids, [codec.decode(each) for each in ids], "torch" in sys.modules]))
"""


@pytest.fixture(params=["as it is", "PreTrainedTokenizerFast", "LlamaTokenizer"])
def folder(request: pytest.FixtureRequest, tiny_model_path: Path, tmp_path: Path) -> Path:
    """A model whose settings name one class of tokenizer or another."""
    path = tmp_path / "model"
    shutil.copytree(tiny_model_path, path)
    if request.param != "as it is":
        settings = json.loads((path / "tokenizer_config.json").read_text())
        (path / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": request.param}))
    return path


def test_the_class_alone_makes_the_same_tokenizer(folder: Path) -> None:
    found = AutoTokenizer.from_pretrained(folder)
    name = tokenizer_class(found)
    program = [sys.executable, "-c", PROGRAM, str(folder), name, json.dumps(TEXTS)]
    printed = subprocess.run(program, check=True, timeout=60, capture_output=True, text=True).stdout
    ids, texts, loads_torch = json.loads(printed)
    assert ids == [found(text)["input_ids"] for text in TEXTS]
    assert texts == [found.decode(each, skip_special_tokens=True) for each in ids]
    assert not loads_torch
    assert type(load_tokenizer(ModelSource(folder, tokenizer=name))) is type(found)


def test_code_that_came_with_a_model_is_not_found_by_name() -> None:
    shipped = type("Shipped", (), {"__module__": "transformers_modules.theirs.tokenization"})
    assert tokenizer_class(shipped()) == ""
