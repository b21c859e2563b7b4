"""The scan of entries by Spark tasks, and the sums of its results."""
