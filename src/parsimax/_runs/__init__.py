"""What every kind of training shares: options, text files, checkpoints, what a run writes."""
