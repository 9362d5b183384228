"""Environments: made, wrapped, checked, stepped, and rebuilt on resume."""
