"""Loops, the run that drives them, and what can be done with a checkpoint."""
