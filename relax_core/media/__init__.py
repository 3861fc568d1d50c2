"""Media of tasks on their way to a model."""
