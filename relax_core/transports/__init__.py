"""Transports that come with core: rows between roles."""
