"""From a GGUF file to a folder in Hugging Face format."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from relax_core.api.errors import RelaxError


def convert_gguf(file: Path, folder: Path) -> None:
    """Writes weights in bfloat16, configuration, generation settings, tokenizer and chat template.

    transformers reads the file: it multiplies quantised weights out and undoes what llama.cpp does to the rows of
    queries and keys, which it interleaves for its own rotary embedding.

    Args:
        file: A causal language model whose architecture transformers can read from GGUF.
        folder: Where to; made if absent.

    Raises:
        RelaxError: The file lacks weights of the model it describes, or is of no kind that can be read.
    """
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    loader: Any = AutoModelForCausalLM
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
        loaded, report = loader.from_pretrained(file.parent, dtype=torch.float32, output_loading_info=True, **where)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise RelaxError(f"{file} cannot be read as a GGUF model: {reason}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise RelaxError(f"{file} lacks {len(missing)} weights, first {missing[0]}")
    _unquantised(loaded).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _unquantised(loaded: Any) -> Any:
    """The same model without the mark of its quantised file, with which transformers refuses to save it."""
    settings = loaded.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path", "_name_or_path"):
        settings.pop(key, None)
    model = type(loaded)(type(loaded.config).from_dict(settings))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    return model
