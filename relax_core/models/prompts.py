"""From a task's prompt to token ids, and back to text for people and rewards."""

from collections.abc import Sequence
from typing import Any, Literal

from transformers import AutoTokenizer

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.api.rows import Task

PromptFormat = Literal["auto", "text", "chat"]


class PromptCodec:
    """Encodes prompts and labels, decodes responses.

    Args:
        model: Folder whose tokenizer is used.
        prompt_format: ``text``: the string as it is. ``chat``: through the chat template, a string being one user
            message. ``auto``: messages through the template, strings as they are.
    """

    def __init__(self, model: ModelSource, prompt_format: PromptFormat = "auto") -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        self.prompt_format = prompt_format
        if prompt_format == "chat" and not self.tokenizer.chat_template:
            raise ConfigError(f"prompt.format: 'chat' needs a chat template, and {model.path} has none; use 'text'")

    def encode_prompt(self, task: Task) -> list[int]:
        """Token ids of a task's prompt, ready to be continued by the model."""
        prompt = task.prompt
        if isinstance(prompt, str) and self.prompt_format != "chat":
            return list(self.tokenizer(prompt, add_special_tokens=True)["input_ids"])
        if not isinstance(prompt, str) and self.prompt_format == "text":
            raise ConfigError(f"prompt.format: 'text', but the prompt of task {task.index} is a list of messages")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if not self.tokenizer.chat_template:
            raise ConfigError(f"prompt of task {task.index} is a list of messages, but the model has no chat template")
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of a label as the model should write it, end of sequence included.

        Raises:
            ConfigError: The tokenizer has no end-of-sequence token: the model would not learn to stop.
        """
        if self.tokenizer.eos_token_id is None:
            raise ConfigError(
                f"model: the tokenizer in {self.tokenizer.name_or_path!r} has no eos_token to end an answer"
            )
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of some tokens without special ones; malformed bytes become U+FFFD."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))
