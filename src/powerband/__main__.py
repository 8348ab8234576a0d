"""Makes ``python -m powerband`` the same as the command ``powerband``; a run starts its rank processes this way."""

import os
import sys

# ``python -m`` lets modules in the current folder, such as a run folder from someone else, replace any later import.
if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():
    del sys.path[0]

from powerband.cli.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
