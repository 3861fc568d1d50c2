"""Contract suites, one module per kind, and what they share. Needs pytest (extra ``test``)."""
