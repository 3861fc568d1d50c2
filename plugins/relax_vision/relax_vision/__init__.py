"""Images and videos for models that Relax trains."""
