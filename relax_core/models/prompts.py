"""From a task's prompt to token ids, and back to text for people and rewards."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.api.media import Encoded, Kind, MediaError, Prompt
from relax_core.api.rows import Task
from relax_core.media.marks import MARK, messages_of, references
from relax_core.models.media_tokens import MediaTokens
from relax_core.models.tokenizer import load_tokenizer

PromptFormat = Literal["auto", "text", "chat"]


class PromptCodec:
    """Encodes prompts and labels, decodes responses.

    Args:
        model: Folder whose tokenizer is used.
        prompt_format: ``text``: the string as it is. ``chat``: through the chat template, a string being one user
            message. ``auto``: messages through the template, strings as they are.
        media_tokens: How media stand in prompts; none where the run has no media.
    """

    carries_media = False
    """Whether rows name the media of their group."""

    def __init__(
        self,
        model: ModelSource,
        prompt_format: PromptFormat = "auto",
        media_tokens: Mapping[Kind, MediaTokens] | None = None,
    ) -> None:
        self.tokenizer: Any = load_tokenizer(model)
        self.prompt_format = prompt_format
        if prompt_format == "chat" and not self.tokenizer.chat_template:
            raise ConfigError(f"prompt.format: 'chat' needs a chat template, and {model.path} has none; use 'text'")
        self._media_tokens = media_tokens or {}
        special = {i for tokens in self._media_tokens.values() for i in (tokens.placeholder, *tokens.before)}
        special |= {i for tokens in self._media_tokens.values() for i in tokens.after}
        self._reserved = sorted(self.tokenizer.convert_ids_to_tokens(sorted(special)))

    async def encode(self, task: Task, most_tokens: int | None = None) -> Prompt:
        """As :meth:`encode_prompt`, of any length; what encodes media too has to wait for them.

        Raises:
            ConfigError: The task has media: there are no encoders here.
        """
        if task.media:
            raise ConfigError(f"dataset: task {task.index} has {task.media[0].kind}, and the run has no `encoders`")
        return Prompt(tuple(self.encode_prompt(task)))

    def prefetch(self, tasks: Iterable[Task], most_tokens: int | None = None) -> None:
        """Text needs no preparation."""

    def encode_prompt(self, task: Task, media: Sequence[Encoded] = ()) -> list[int]:
        """Token ids of a task's prompt, ready to be continued by the model.

        Args:
            task: What is asked.
            media: Those of the task, encoded: the layout of each stands where the prompt refers to it.

        Raises:
            MediaError: ``placeholder_in_text``: a token that stands for media is in the text itself. ``mismatch``: the
                prompt does not refer to exactly these media, in this order.
        """
        if self._reserved:
            self._refuse_reserved(task)
        ids = self._with_placeholders(task, media) if media else self._encode(task, task.prompt)
        return self._expanded(ids, task, media) if self._media_tokens else ids

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of a label as the model should write it, end of sequence included.

        Raises:
            ConfigError: The tokenizer has no end-of-sequence token: the model would not learn to stop.
        """
        if self.tokenizer.eos_token_id is None:
            raise ConfigError(
                f"model: the tokenizer in {self.tokenizer.name_or_path!r} has no eos_token to end an answer"
            )
        self._refuse_text(text, "an answer")
        return [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of some tokens without special ones; malformed bytes become U+FFFD."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _encode(self, task: Task, prompt: Any) -> list[int]:
        if isinstance(prompt, str) and self.prompt_format != "chat":
            return list(self.tokenizer(prompt, add_special_tokens=True)["input_ids"])
        if not isinstance(prompt, str) and self.prompt_format == "text":
            raise ConfigError(f"prompt.format: 'text', but the prompt of task {task.index} is a list of messages")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if not self.tokenizer.chat_template:
            raise ConfigError(f"prompt of task {task.index} is a list of messages, but the model has no chat template")
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    # Media.

    def _with_placeholders(self, task: Task, media: Sequence[Encoded]) -> list[int]:
        """The prompt with one placeholder for each medium."""
        messages = messages_of(task.prompt)
        wanted, given = list(references(messages)), [medium.kind for medium in media]
        if wanted != given:
            raise MediaError("mismatch", f"the prompt refers to {wanted or 'no media'}, and there are {given}")
        for kind in given:
            if kind not in self._media_tokens:
                raise ConfigError(f"model: {self.tokenizer.name_or_path!r} has no tokens that stand for {kind}")
        if not isinstance(task.prompt, str) or self.prompt_format == "chat":
            return self._encode(task, messages)
        marks = {str(kind): self._text_of(tokens) for kind, tokens in self._media_tokens.items()}
        return self._encode(task, MARK.sub(lambda mark: marks[mark[1]], task.prompt))

    def _expanded(self, ids: Sequence[int], task: Task, media: Sequence[Encoded]) -> list[int]:
        """Each placeholder replaced by the layout of its medium."""
        placeholders = {tokens.placeholder for tokens in self._media_tokens.values()}
        found = [token for token in ids if token in placeholders]
        wanted = [self._media_tokens[medium.kind].placeholder for medium in media]
        if len(found) > len(wanted):  # made of pieces of text, of which none alone is a placeholder
            raise MediaError("placeholder_in_text", f"the prompt of task {task.index} has a placeholder in its text")
        if found != wanted:
            raise MediaError("mismatch", f"the chat template made {len(found)} placeholders of {len(wanted)} media")
        expanded: list[int] = []
        rest = 0
        for medium, place in zip(media, [at for at, token in enumerate(ids) if token in placeholders], strict=True):
            tokens = self._media_tokens[medium.kind]
            start, end = place - len(tokens.before), place + 1 + len(tokens.after)
            if start < rest or (*ids[start:place], *ids[place + 1 : end]) != (*tokens.before, *tokens.after):
                tokens, start, end = MediaTokens(tokens.placeholder, (), ()), place, place + 1  # a template without
            expanded += [*ids[rest:start], *self._layout(medium, tokens)]
            rest = end
        return [*expanded, *ids[rest:]]

    def _layout(self, medium: Encoded, tokens: MediaTokens) -> list[int]:
        ids: list[int] = []
        for part in medium.layout:
            if isinstance(part, str):
                ids += self.tokenizer(part, add_special_tokens=False)["input_ids"]
            else:
                ids += [*tokens.before, *[tokens.placeholder] * part, *tokens.after]
        return ids

    def _text_of(self, tokens: MediaTokens) -> str:
        return "".join(self.tokenizer.convert_ids_to_tokens([*tokens.before, tokens.placeholder, *tokens.after]))

    def _refuse_reserved(self, task: Task) -> None:
        for text in _texts(task.prompt):
            self._refuse_text(text, f"the prompt of task {task.index}")

    def _refuse_text(self, text: str, where: str) -> None:
        found = next((token for token in self._reserved if token in text), None)
        if found is not None:
            raise MediaError("placeholder_in_text", f"{where} has {found!r} in its text, which stands for media")


def _texts(value: Any) -> Iterator[str]:
    """All texts of a prompt, wherever a chat template may find them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts(each)
