"""Sweeps: many runs from one config, over processes or machines, shown in one table, resumed after any stop."""
