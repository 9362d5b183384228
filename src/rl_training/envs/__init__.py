"""Environments as the package sees them: made, wrapped, and described by their spaces."""
