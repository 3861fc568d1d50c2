"""What all roles that make prompts do with one that cannot be used."""

from relax_core.api.errors import PromptTooLong
from relax_core.api.media import MediaError, Prompt
from relax_core.api.rows import Task
from relax_core.roles.collaborators import Prompts


async def encode_prompt(prompts: Prompts, task: Task, most_tokens: int | None) -> Prompt:
    """A task's prompt.

    Raises:
        PromptTooLong: It has more than ``most_tokens``; it is never cut, since that may be within a medium.
        MediaError: Its media cannot be used.
    """
    prompt = await prompts.encode(task, most_tokens)
    if most_tokens is not None and len(prompt.token_ids) > most_tokens:
        raise PromptTooLong(f"the prompt of task {task.index} has {len(prompt.token_ids)} tokens, over {most_tokens}")
    return prompt


def drop_reason(error: PromptTooLong | MediaError) -> str:
    """Why a task leaves, as the ledger counts it."""
    return f"media_{error.reason}" if isinstance(error, MediaError) else "prompt_too_long"
