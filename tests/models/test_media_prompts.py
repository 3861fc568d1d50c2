"""Prompts with media: as many placeholders as each medium asks for, where it is referred to, and nowhere else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.api.media import Encoded, Kind, MediaError, Medium
from relax_core.api.rows import Task
from relax_core.models.byte_tokenizer import byte_tokenizer
from relax_core.models.media_tokens import MediaTokens
from relax_core.models.prompts import PromptCodec, PromptFormat

TOKENIZER = byte_tokenizer()
TOKENS: dict[Kind, MediaTokens] = {"image": MediaTokens(261, (259,), (260,)), "audio": MediaTokens(265, (263,), (264,))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the byte tokenizer."""
    path = tmp_path_factory.mktemp("model")
    TOKENIZER.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def codec(folder: Path) -> PromptCodec:
    return PromptCodec(ModelSource(folder), media_tokens=TOKENS)


def encoded(kind: Kind, *layout: int | str) -> Encoded:
    return Encoded(kind, "letters", layout, {})


def ids(text: str) -> list[int]:
    return list(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def stands(medium: Encoded) -> list[int]:
    """A medium as a model reads it."""
    tokens = TOKENS[medium.kind]
    found: list[int] = []
    for part in medium.layout:
        run = [] if isinstance(part, str) else [*tokens.before, *[tokens.placeholder] * part, *tokens.after]
        found += ids(part) if isinstance(part, str) else run
    return found


SAID = st.sampled_from(["<2 s>", "é"])
RUN = st.integers(1, 9)
LAYOUTS = st.one_of(st.tuples(st.integers(1, 40)), st.tuples(RUN, SAID, RUN), st.tuples(SAID, RUN, SAID, RUN))
MEDIA = st.lists(
    st.builds(lambda kind, layout: encoded(kind, *layout), st.sampled_from(["image", "audio"]), LAYOUTS), max_size=5
)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>|"), max_size=8)


@given(media=MEDIA, texts=st.lists(TEXT, min_size=6, max_size=6))
def test_each_medium_stands_where_a_text_refers_to_it(
    codec: PromptCodec, media: list[Encoded], texts: list[str]
) -> None:
    prompt = texts[0] + "".join(f"<{medium.kind}>{text}" for medium, text in zip(media, texts[1:], strict=False))
    expected = ids(texts[0])
    for medium, text in zip(media, texts[1:], strict=False):
        expected += stands(medium) + ids(text)
    assert codec.encode_prompt(task_of(prompt, media), media) == expected


@given(media=MEDIA, texts=st.lists(TEXT, min_size=6, max_size=6), as_parts=st.booleans(), chat=st.booleans())
def test_each_medium_stands_where_messages_refer_to_it(
    folder: Path, media: list[Encoded], texts: list[str], as_parts: bool, chat: bool
) -> None:
    parts: list[dict[str, str]] = []
    for medium, text in zip(media, texts, strict=False):
        parts += [{"type": medium.kind}, {"type": "text", "text": text}]
    marked = "".join(f"<{part['type']}>" if part["type"] != "text" else part["text"] for part in parts)
    content: Any = parts if as_parts else marked
    prompt = marked if chat else [{"role": "system", "content": "Look."}, {"role": "user", "content": content}]
    expected = [] if chat else ids("<|im_start|>system\nLook.<|im_end|>\n")
    expected += ids("<|im_start|>user\n")
    for medium, text in zip(media, texts, strict=False):
        expected += stands(medium) + ids(text)
    expected += ids("<|im_end|>\n<|im_start|>assistant\n")
    form: PromptFormat = "chat" if chat else "auto"
    codec = PromptCodec(ModelSource(folder), form, TOKENS)
    assert codec.encode_prompt(task_of(prompt, media), media) == expected


def task_of(prompt: Any, media: Sequence[Encoded]) -> Task:
    return Task(7, prompt, media=[Medium(medium.kind, "file") for medium in media])


IMAGE, AUDIO = encoded("image", 3), encoded("audio", 2)


@pytest.mark.parametrize(
    ("prompt", "media"),
    [
        ("<image>", [IMAGE, IMAGE]),
        ("<image><image>", [IMAGE]),
        ("no reference", [IMAGE]),
        ("<image><audio>", [AUDIO, IMAGE]),
        ([{"role": "user", "content": [{"type": "image"}, {"type": "image"}]}], [IMAGE]),
    ],
)
def test_references_and_media_must_be_the_same_in_order(codec: PromptCodec, prompt: Any, media: list[Encoded]) -> None:
    with pytest.raises(MediaError) as error:
        codec.encode_prompt(task_of(prompt, media), media)
    assert error.value.reason == "mismatch"


@pytest.mark.parametrize("typed", ["<|image_pad|>", "<|audio_pad|>", "<|vision_start|>", "<|audio_end|>"])
@pytest.mark.parametrize("media", [[], [IMAGE]], ids=["text", "media"])
def test_a_typed_placeholder_is_refused(codec: PromptCodec, typed: str, media: list[Encoded]) -> None:
    marks = "<image>" * len(media)
    text = {"type": "text", "text": typed}
    parts = [{"role": "user", "content": [text, *[{"type": "image"}] * len(media)]}]
    for prompt in (f"a {typed} b{marks}", [{"role": "user", "content": f"{typed}{marks}"}], parts):
        with pytest.raises(MediaError, match="task 7") as error:
            codec.encode_prompt(task_of(prompt, media), media)
        assert error.value.reason == "placeholder_in_text"
    with pytest.raises(MediaError):
        codec.encode_answer(f"it is {typed}")


def test_a_placeholder_that_is_put_together_of_texts_is_refused(codec: PromptCodec) -> None:
    texts = [{"type": "text", "text": "<|image_"}, {"type": "text", "text": "pad|>"}]
    for content, media in ((texts, []), ([{"type": "image"}, *texts], [IMAGE])):
        with pytest.raises(MediaError) as error:
            codec.encode_prompt(task_of([{"role": "user", "content": content}], media), media)
        assert error.value.reason == "placeholder_in_text"


def test_a_template_without_marks_has_none(folder: Path) -> None:
    codec = PromptCodec(ModelSource(folder), "chat", TOKENS)
    codec.tokenizer.chat_template = codec.tokenizer.chat_template.replace("<|vision_start|>", "")
    media = [encoded("image", "at 1 s", 2), AUDIO]
    expected = [*ids("<|im_start|>user\naat 1 s"), 261, 261, 260, *stands(AUDIO)]
    found = codec.encode_prompt(task_of("a<image><audio>", media), media)
    assert found[: len(expected)] == expected


def test_a_mark_is_text_where_there_are_no_media(codec: PromptCodec, folder: Path) -> None:
    assert codec.encode_prompt(Task(0, "an <image> tag")) == ids("an <image> tag")
    of_text = PromptCodec(ModelSource(folder))
    assert of_text.encode_prompt(Task(0, "<|image_pad|>")) == [261], "a run without media reads what is written"


async def test_a_run_without_encoders_refuses_media(folder: Path) -> None:
    codec = PromptCodec(ModelSource(folder))
    with pytest.raises(ConfigError, match="task 7 has image, and the run has no `encoders`"):
        await codec.encode(task_of("<image>", [IMAGE]))


def test_a_kind_that_the_model_does_not_take_is_refused(codec: PromptCodec) -> None:
    with pytest.raises(ConfigError, match="has no tokens that stand for video"):
        codec.encode_prompt(task_of("<video>", [encoded("video", 2)]), [encoded("video", 2)])
