"""Training loops, a file for each kind: on-policy, off-policy, offline, model-based."""
