"""Sound for models that Relax trains."""
