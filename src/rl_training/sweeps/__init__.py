"""Many runs from one config: planned, spread over processes or machines, watched in one table, continued after any stop."""
