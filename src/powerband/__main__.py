"""``python -m powerband`` is ``powerband``; the ranks of a run are started this way."""

import sys

from powerband.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
