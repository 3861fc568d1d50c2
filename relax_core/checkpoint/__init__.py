"""What outlives the process: the run's folder and its checkpoints."""
