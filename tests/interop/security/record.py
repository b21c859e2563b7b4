"""Records the golden answers of a real Pulsar: `python -m tests.interop.security.record SCRIPTS`.

SCRIPTS is a folder with `start.sh` and `stop.sh`; `servers.py` says what they must do.
"""

import json
import sys
import tempfile
from pathlib import Path

from . import answers, campaign, programs, servers
from .credentials import realm


def main(scripts: Path) -> None:
    """Runs all scenarios and writes the file."""
    made = programs.prepare()
    with tempfile.TemporaryDirectory() as name, realm(Path(name)) as identities:
        data = Path(name, "pulsar")
        data.mkdir()
        with servers.real_pulsar(scripts, identities, data) as server:
            found = campaign.run(server, identities, made, Path(name))
    text = json.dumps(answers.normalized(found), indent=2)
    answers.ANSWERS.write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
