"""vLLM as an engine, in the process that asks."""
