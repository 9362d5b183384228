"""Configs, run directories, checkpoints, logs and the list of algorithms."""
