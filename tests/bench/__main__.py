"""`python -m tests.bench`: see `compare`."""

from tests.bench.compare import main

main()
