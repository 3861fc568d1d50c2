"""Numbers about a run on their way to the sinks."""
