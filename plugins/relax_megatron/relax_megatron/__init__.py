"""The Megatron-Core trainer."""
