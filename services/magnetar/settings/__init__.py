"""Settings: the settings classes of each process, and their declaration, conversion and loading."""
