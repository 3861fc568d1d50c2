"""Small pretrained models by name: where they come from, where they are kept, and how they become model folders."""
