"""Images for models that Relax trains."""
