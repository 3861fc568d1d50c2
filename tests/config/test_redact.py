import pytest

from relax_core.config.fields import all_keys
from relax_core.config.redact import REDACTED, is_secret_key, redacted
from relax_core.config.run import RunSections
from relax_core.config.sections import SECTIONS
from relax_core.config.selection import config_class
from relax_core.registry import registry


@pytest.mark.parametrize(
    "key",
    [
        "token", "hf_token", "HF_TOKEN", "access_token", "api_key", "apiKey", "X-Api-Key", "WANDB_API_KEY", "api_keys",
        "password", "db_password", "passwd", "secret", "client_secret", "clientSecret", "aws_secret_access_key",
        "authorization", "Authorization", "proxy-authorization", "private_key", "credentials", "cookie", "apikey",
    ],
)  # fmt: skip
def test_secret_keys(key: str) -> None:
    assert is_secret_key(key)
    assert redacted({key: "s3cret"}) == {key: REDACTED}
    assert redacted({"sinks": [{"deep": {key: ["s3cret"]}}]}) == {"sinks": [{"deep": {key: REDACTED}}]}


@pytest.mark.parametrize(
    "key",
    [
        "tokens_per_micro_batch", "max_new_tokens", "stop_token_ids", "tokenizer", "tokens", "eos_token", "pad_token",
        "image_token", "prompt_key", "label_key", "metadata_key", "author", "key", "keys", "secretary", "monkey",
    ],
)  # fmt: skip
def test_innocent_keys(key: str) -> None:
    assert not is_secret_key(key)
    assert redacted({key: "value"}) == {key: "value"}


def test_no_key_of_relax_itself_is_taken_for_a_secret() -> None:
    keys = {key[-1] for key in all_keys(RunSections)}
    for section in SECTIONS:
        for found in registry().offers(section.kind):
            keys |= {key[-1] for key in all_keys(config_class(found.component, section.base))}
    assert [key for key in sorted(map(str, keys)) if is_secret_key(key)] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://me:pa55@db.example/runs", "postgres://***@db.example/runs"),
        ("https://:pa@ss@proxy:8080", "https://***@proxy:8080"),
        ("redis://:pa55@cache", "redis://***@cache"),
        ("https://example.org/x?token=abc&page=2", "https://example.org/x?token=***&page=2"),
        ("--api-key=abc --port=80", "--api-key=*** --port=80"),
        ("https://example.org:8080/a@b", "https://example.org:8080/a@b"),
        ("s3://bucket/path", "s3://bucket/path"),
        ("mail me@example.org", "mail me@example.org"),
        ("7392=2379", "7392=2379"),
        ("https://ghp_abc@example.org/x.git", "https://***@example.org/x.git"),
        ("https://example.org/x?to=me@example.org", "https://example.org/x?to=me@example.org"),
        ("https://a.blob/x?sv=1&sig=ab%3D&se=2", "https://a.blob/x?sv=1&sig=***&se=2"),
        ("https://s3/x?X-Amz-Signature=abc&X-Amz-Date=1", "https://s3/x?X-Amz-Signature=***&X-Amz-Date=1"),
        ("https://cdn/x?Signature=abc", "https://cdn/x?Signature=***"),
        ("Authorization: Bearer abc", "Authorization: ***"),
        ("proxy-authorization:Basic dXNlcjpwYQ==", "proxy-authorization:***"),
        ("X-Api-Key: abc", "X-Api-Key: ***"),
        ("Accept: text/html", "Accept: text/html"),
        ("-H Authorization: Bearer abc -v", "-H Authorization: *** -v"),
        ("{'Authorization': 'Bearer abc', 'Accept': '*'}", "{'Authorization': '***', 'Accept': '*'}"),
        ("401 for Bearer abc.def-1", "401 for Bearer ***"),
        ("Bearer abcdefghijklmnop", "Bearer ***"),
        ("You are a Bearer of news.", "You are a Bearer of news."),
        ("Secret: the model must\nanswer in JSON.", "Secret: the model must\nanswer in JSON."),
        ("authorization: is required", "authorization: is required"),
        ("def f(x, sig=1): ...", "def f(x, sig=1): ..."),
        ("hf://gpt2@main/x", "hf://gpt2@main/x"),
        ("--header=Authorization=Bearer abc", "--header=Authorization=***"),
        ("the bearer of a letter; authorization failed", "the bearer of a letter; authorization failed"),
    ],
)
def test_secrets_inside_texts(text: str, shown: str) -> None:
    assert redacted({"url": [text]}) == {"url": [shown]}


def test_what_is_not_text_stays_unless_its_key_is_secret() -> None:
    data = {"a": 1, "b": None, "c": [1.5, True], "use_token": False, "token": None, "password": 12345}
    assert redacted(data) == {**data, "password": REDACTED}
    assert data["password"] == 12345
