"""Makes ``python -m powerband`` the same as the command ``powerband``; a run starts its rank processes this way."""

import os
import sys

# ``python -m`` lets modules in the current folder, such as a run folder from someone else, replace any later import.
# Child processes are started with -P, so that they import from the same folders as this process.
if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():
    del sys.path[0]
    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if source == os.getcwd() and source not in sys.path:  # powerband is not installed, and children must find it too
        sys.path.append(source)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), source)))

from powerband.cli.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
