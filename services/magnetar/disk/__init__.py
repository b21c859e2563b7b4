"""Files and their failures: the interface that storage uses, and the machine's own file systems."""
