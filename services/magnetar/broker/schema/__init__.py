"""The schema registry: versions per topic in the metadata store, and how they must fit."""
