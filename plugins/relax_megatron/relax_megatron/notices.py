"""Imported before Megatron-Core: its remarks about itself are known, since one version of it is pinned.

That Transformer Engine and Apex are absent, that ``GPTModel`` will one day be replaced: none of it is for the user.
"""

import logging
import warnings

warnings.filterwarnings("ignore", module=r"megatron\.core")
logging.getLogger("megatron.core").setLevel(logging.ERROR)
