"""Installs all wheels of a folder into another folder, without a network and without resolving dependencies.

    python benchmarks/gpu/install_wheels.py WHEELS PACKAGES --json FILE

The machine's own Python is not changed. Only the wheels of the folder are installed, so a package of the machine, such
as torch, stays what it is unless the folder holds it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("packages", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    files = sorted(options.wheels.glob("*.whl"))
    if not files:
        sys.exit(f"{options.wheels} has no .whl files. Name a folder of wheels for this Python and platform.")
    command = [sys.executable, *"-m pip install --quiet --no-index --no-deps --no-compile --upgrade".split()]
    command += ["--find-links", str(options.wheels), "--target", str(options.packages), *map(str, files)]
    if subprocess.run(command).returncode:
        sys.exit(f"pip did not install the wheels of {options.wheels} for Python {sys.version.split()[0]}.")
    options.json.write_text(json.dumps({"installed": [file.name for file in files]}) + "\n")


if __name__ == "__main__":
    main()
