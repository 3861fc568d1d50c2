"""The embedded trainer: any Hugging Face causal language model on one device, in this process."""
