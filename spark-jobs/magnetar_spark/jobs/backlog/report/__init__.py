"""The report of a run: page, charts, numbers, metrics, and where the files go."""
