"""Makes ``python -m powerband`` the same as the command ``powerband``; a run starts its rank processes this way."""

import sys

from powerband.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
