"""Start of powerband's instrumentation in a script that knows nothing about it.

Python imports ``sitecustomize`` when it starts. `powerband.attach.processes.launch` puts this folder at the front of
PYTHONPATH, so Python finds this file instead of the ``sitecustomize`` of the installation, and this file runs that one.
Python behaves as if this file did not exist: the folder leaves ``sys.path``, and a missing ``sitecustomize`` stays
missing.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _run_hidden() -> None:
    """Imports the ``sitecustomize`` that this file hides.

    Raises:
        ImportError: There is none. `site` ignores this error, as it does without this file.
    """
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _attach() -> None:
    """Starts the instrumentation if POWERBAND_ATTACH names one. An error never reaches the script."""
    if not os.environ.get("POWERBAND_ATTACH"):
        return
    sys.path.insert(0, _FOLDER)
    try:
        import powerband_attach
    except Exception:
        return
    finally:
        sys.path.remove(_FOLDER)
    powerband_attach.start()


sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _FOLDER]
try:
    _run_hidden()
finally:
    _attach()
