"""Mutators: from a good file and a seed, the same sequence of bad files on every machine.

Each gives pairs of a description and the file's bytes, without end unless ``count`` is given:
- ``fuzzing.damage.damaged``: bytes flipped, cut, doubled or zeroed, in a file of any kind.
- ``fuzzing.checkpoints.mutants``: checkpoints whose container and checksum are right and whose contents are not.
- ``fuzzing.datasets.npz_mutants``, ``hdf5_mutants``: files of transitions whose headers or columns are wrong.
"""
