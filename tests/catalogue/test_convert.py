"""What llama.cpp has written becomes, to the bit, the model it was made from."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("gguf", reason="the extra `models` is not installed")
pytest.importorskip("accelerate", reason="the extra `models` is not installed")

from relax_core.api.errors import RelaxError
from relax_core.catalogue.convert import convert_gguf
from relax_core.testing.catalogue import END, ROTARY_BASE, TOKENS, tiny_gguf


def test_weights_configuration_and_answers_are_those_of_the_model(tmp_path: Path) -> None:
    original = tiny_gguf(tmp_path / "tiny.gguf")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "model")
    original.load_state_dict({name: weight.bfloat16() for name, weight in original.state_dict().items()})
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    expected, found = original.state_dict(), converted.state_dict()
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    ids = torch.arange(40).reshape(2, 20) + 60
    torch.testing.assert_close(converted(ids).logits, original(ids).logits)
    assert AutoConfig.from_pretrained(tmp_path / "model").dtype == torch.bfloat16
    for key in ("num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings"):
        assert getattr(converted.config, key) == pytest.approx(getattr(original.config, key)), key
    assert converted.config.rope_parameters["rope_theta"] == ROTARY_BASE
    assert converted.generation_config.eos_token_id == END
    assert "quantization_config" not in json.loads((tmp_path / "model" / "config.json").read_text())


def test_the_tokenizer_has_merges_special_tokens_and_the_chat_template(tmp_path: Path) -> None:
    tiny_gguf(tmp_path / "tiny.gguf")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = tokenizer("abé<|im_end|>", add_special_tokens=False)["input_ids"]
    assert ids == [TOKENS.index(piece) for piece in ("ab", "Ã", "©", "<|im_end|>")]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (END, END)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "<|im_start|>user\nhi<|im_end|>\n"


def test_what_is_no_gguf_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"nothing of the kind" * 10)
    with pytest.raises(RelaxError, match=r"bad\.gguf cannot be read as a GGUF model"):
        convert_gguf(tmp_path / "bad.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()
