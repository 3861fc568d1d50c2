"""TransferQueue as a transport: rows in its storage units, leases and limits by Relax."""
