"""Any engine in a process of its own on this machine, so that it and its caller compute at the same time."""
