"""The columns that core itself knows; algorithms and plugins add theirs."""

from relax_core.api.columns import ColumnSpec

TOKENS = ColumnSpec("tokens", "int64")
"""Prompt and response ids of one training row; there is no split in the contract, only the mask."""

LOSS_MASK = ColumnSpec("loss_mask", "bool")
"""True where the policy chose the token: its end-of-sequence or stop token too; never at entry 0."""

ROLLOUT_LOGPROBS = ColumnSpec("rollout_logprobs", "float32")
"""Behaviour policy: the engine that sampled, under exactly its temperature, top-p and top-k. 0 outside the mask."""

OLD_LOGPROBS = ColumnSpec("old_logprobs", "float32")
"""Proximal policy: the trainer at the start of the batch. 0 outside the mask."""

REF_LOGPROBS = ColumnSpec("ref_logprobs", "float32")
"""Frozen reference model. 0 outside the mask."""

TEACHER_LOGPROBS = ColumnSpec("teacher_logprobs", "float32")
"""Frozen teacher that a policy learns from, at its own temperature. 0 outside the mask."""

PREFERRED = ColumnSpec("preferred", "bool", "row")
"""Whether the row is the better one of its group, which has two."""

SEGMENTS = ColumnSpec("segments", "int64", "row", (2,), ragged=True)
"""``(start, version)``: from which token of the row on which weight version generated."""

SUPPORT_COUNTS = ColumnSpec("support_counts", "int32")
"""How many ids top-p and top-k left at each trainable token; 0 elsewhere. Written only when one of them is set."""

SUPPORT_IDS = ColumnSpec("support_ids", "int32", "row", (), ragged=True)
"""Those ids, token after token."""

STOP_REASON = ColumnSpec("stop_reason", "int8", "row")
"""Value of :class:`relax_core.api.rows.StopReason`."""

TASK = ColumnSpec("task", "uint8", "group", (), ragged=True)
"""The task as UTF-8 JSON."""

MEDIA = ColumnSpec("media", "uint8", "group", (), ragged=True)
"""Keys of the transport's blobs that hold the group's media, as a UTF-8 JSON list, in the order of their placeholders;
blobs are :attr:`relax_core.api.media.Encoded.packed`. Written only in runs with encoders."""

REWARD = ColumnSpec("reward", "float64", "row")
"""The trajectory's reward; 0 where ``scored`` is false."""

SCORED = ColumnSpec("scored", "bool", "row")
"""False where the reward abstained: the row leaves the statistics and the loss."""

REWARD_PARTS = ColumnSpec("reward_parts", "uint8", "row", (), ragged=True)
"""What the reward is made of, as a UTF-8 JSON object of numbers; for people."""

TRAINER_LOGPROBS = ColumnSpec("trainer_logprobs", "float32")
"""What the trainer computed for each token in an update, before its step; only in stored batches."""

LOSS_SCALE = ColumnSpec("loss_scale", "float32", "row")
"""Factor of everything a row adds to the loss; made from its lag when a batch starts, never carried."""

FOR_PEOPLE = frozenset({TASK.name, REWARD_PARTS.name})
"""Columns that no model needs."""

CORE_COLUMNS = (
    TOKENS,
    LOSS_MASK,
    ROLLOUT_LOGPROBS,
    OLD_LOGPROBS,
    REF_LOGPROBS,
    TEACHER_LOGPROBS,
    PREFERRED,
    SEGMENTS,
    SUPPORT_COUNTS,
    SUPPORT_IDS,
    STOP_REASON,
    TASK,
    MEDIA,
    REWARD,
    SCORED,
    REWARD_PARTS,
)
