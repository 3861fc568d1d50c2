"""Model folders: making tiny ones, loading tokenizers, turning prompts into ids."""
