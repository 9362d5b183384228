"""Analysis of runs: records of run directories, statistics over seeds, comparisons, and the report page."""
