"""Whether two models mean the same by a token id."""

from typing import Any

from relax_core.api.context import ModelSource
from relax_core.api.errors import ConfigError
from relax_core.models.loading import loading
from relax_core.models.tokenizer import load_tokenizer


def require_same_vocabulary(tokenizer: Any, teacher: ModelSource) -> None:
    """Refuses a teacher to whom the policy's tokens are others.

    Only ids of the tokenizers count: models may have further rows in their embeddings, to which no token belongs.

    Args:
        tokenizer: The policy's.
        teacher: Folder with another tokenizer.

    Raises:
        ConfigError: Names the first id that differs.
    """
    with loading(teacher.path):
        other = load_tokenizer(teacher)
    ours, theirs = _by_id(tokenizer), _by_id(other)
    different = sorted(index for index in {*ours, *theirs} if ours.get(index) != theirs.get(index))
    if different:
        first = different[0]
        raise ConfigError(
            f"teacher: the tokenizer in {str(teacher.path)!r} is not the model's: different token ids "
            f"{len(different)}, first {first}: {_shown(theirs, first)} to the teacher, "
            f"{_shown(ours, first)} to the model"
        )


def _shown(tokens: dict[int, str], index: int) -> str:
    return repr(tokens[index]) if index in tokens else "none"


def _by_id(tokenizer: Any) -> dict[int, str]:
    return {index: token for token, index in tokenizer.get_vocab().items()}
