"""Engines as a pool behind one engine: which one answers a request, and what happens when it cannot."""
