"""Mutators: from a good file and a seed, the same sequence of bad files on every machine; and trials of what comes of them.

Each gives pairs of a description and the file's bytes, without end unless ``count`` is given:
- ``fuzzing.damage.damaged``: bytes flipped, cut, doubled or zeroed, in a file of any kind.
- ``fuzzing.checkpoints.mutants``: checkpoints whose container and checksum are right and whose contents are not.
- ``fuzzing.datasets.npz_mutants``, ``hdf5_mutants``: files of transitions whose headers or columns are wrong.

A seed each: ``fuzzing.configs.mutant``, ``fuzzing.folders.mutate_run`` and ``mutate_sweep``, ``fuzzing.environments.Misbehaving``.
``fuzzing.attempts`` hands them to the package's commands, ``fuzzing.trials`` does so in processes of their own and judges what comes of it;
``fuzzing.lives`` kills runs and compares them with one that nothing happened to. ``python -m fuzzing`` repeats one seed by hand.
"""
