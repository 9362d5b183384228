"""Optimizers and compiled updates."""
