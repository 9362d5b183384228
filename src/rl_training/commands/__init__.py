"""The command line beyond one run: a module for each kind of work, each adding its commands with ``add``."""
