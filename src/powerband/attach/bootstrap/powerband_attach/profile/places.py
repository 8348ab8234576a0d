"""Places: what a Python stack is doing, as an account and as lines of the user's code.

`user_code` says which files are the user's code.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from types import CodeType, FrameType
from typing import NamedTuple

from powerband_attach import user_code

WAITS = ("/multiprocessing/", "/envpool/")
"""Files in which the loop waits for another process, or for the threads of a compiled simulator."""
FILES = {
    "log": (
        "/tensorboard/", "/tensorboardX/", "/wandb/", "/mlflow/", "/tqdm/", "/rich/", "/logging/", "/csv.py",
        "/matplotlib/", "/imageio/", "/moviepy/", "/common/logger.py", "/loguru/", "/comet_ml/", "/progress/",
    ),
    "save": ("/safetensors/", "/common/save_util.py", "/torch/serialization.py", "/distributed/checkpoint/"),
    "collectives": ("/torch/distributed/distributed_c10d.py",),
    "data_wait": ("/h5py/", "/pyarrow/", "/torch/utils/data/", "/torchcodec/", "/decord/", "/av/", "/zarr/"),
    "env": ("/mujoco/", "/pybullet/"),
}  # fmt: skip
"""Account -> parts of the paths of files that belong to it."""
IN_FILES = {
    "sample": (re.compile(r"buffer|replay|memor|storage|sampler"), re.compile(r"sample|^_?get|gather|batch")),
    "store": (
        re.compile(r"buffer|replay|memor|storage|collector"),
        re.compile(r"^_?(add|store|push|append|extend|put|set)"),
    ),
}
"""Account -> (pattern of the name of a file or of a class's method, pattern of the name of the function)."""
FUNCTIONS = {
    "returns": re.compile(r"(^|_)(gae|advantages?|returns_and_advantages?|discounted_returns?)($|_)"),
    "eval": re.compile(
        r"^_?(run_)?(eval|evaluate|evaluation|validate|validation|test)(_(policy|model|agent|loop|epoch|step|episodes?))?$"
    ),
    "save": re.compile(r"^_?(save|checkpoint)(_|$)"),
}
"""Account -> pattern of the name of a function, in the user's code and in frameworks."""
SYNCHRONISATIONS = re.compile(r"\.(item|cpu|numpy|tolist|synchronize)\(|\.to\(")
"""Calls of a line that copy between host and device, or wait for the device."""
EVALUATIONS = re.compile(r"EvalCallback|EvaluationLoop")
"""Classes of Stable-Baselines3 and Lightning whose methods evaluate."""


class Place(NamedTuple):
    """What a stack is doing.

    Attributes:
        account: Account that the stack shows for certain, or ``wait`` for another process; "" if it shows none.
        torch: Whether torch computes: "module" inside of a network, "tensor" otherwise, "" if it does not.
        line: Innermost line of the user's code, as ``path:line``; "" if there is none.
        caller: Line of the user's code that called it from another function; "" if there is none.
        library: Innermost line outside of the user's code, of torch and of the standard library; "" if there is none.
        codes: Functions of the stack outside of torch and of the standard library, the innermost first.
        evaluations: Those of `codes` that evaluate, to judge by their names. `callers` decides.
    """

    account: str
    torch: str
    line: str
    caller: str
    library: str
    codes: tuple[CodeType, ...]
    evaluations: tuple[CodeType, ...] = ()


def place_of(frame: FrameType) -> Place:
    """Finds out what the stack that ends in `frame` is doing."""
    account, torch, line, caller, library = "", "", "", "", ""
    line_code: CodeType | None = None
    first = True
    codes: list[CodeType] = []
    evaluations: list[CodeType] = []
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        kind = _KINDS.get(code) or _kind(code)
        if kind.own:  # frames inside of a span, such as of a reward function, do not make it an evaluation
            evaluations.clear()
            current = current.f_back
            continue
        if first and kind.user_or_framework and _on_gpu() and SYNCHRONISATIONS.search(_text(current)):
            account = "h2d"
        first = False
        if not account and not _calls_other_code(kind, bool(codes), line_code is not None):
            account = kind.account
        if kind.evaluates:
            evaluations.append(code)
        if kind.torch and torch != "module":
            torch = kind.torch
        if kind.user_or_framework:
            codes.append(code)
        if kind.user:
            if line_code is None:
                line, line_code = f"{code.co_filename}:{current.f_lineno}", code
            elif not caller and code is not line_code:
                caller = f"{code.co_filename}:{current.f_lineno}"
        elif kind.user_or_framework and not library and line_code is None:
            library = f"{code.co_filename}:{current.f_lineno}"
        current = current.f_back
    return Place(account, torch, line, caller, library, tuple(codes), tuple(evaluations))


def _calls_other_code(kind: _Kind, below: bool, user_below: bool) -> bool:
    """Returns whether a library only calls code of others, which is not its work: a worker process, a progress bar.

    A batch loader calls the user's data set, which is a part of its work.

    Args:
        kind: Function of the library.
        below: Whether it has called a function of the user or of a framework.
        user_below: Whether it has called a function of the user.
    """
    if kind.account == "wait":
        return below
    return kind.of_library and user_below and kind.account != "data_wait"


class _Kind(NamedTuple):
    """What a function of the stack says, from its file and its name."""

    own: bool
    user: bool
    user_or_framework: bool
    torch: str
    account: str
    of_library: bool
    evaluates: bool


_KINDS: dict[CodeType, _Kind] = {}


def _kind(code: CodeType) -> _Kind:
    path, name = code.co_filename, code.co_name
    compiled, standard = user_code.is_compiled_file(path), user_code.is_standard_file(path)
    library = compiled or standard or user_code.is_package_file(path)
    is_torch = compiled or ("/torch/" in path and library)
    torch = ("module" if path.endswith("/torch/nn/modules/module.py") else "tensor") if is_torch else ""
    account = ""
    for each, parts in FILES.items():
        if library and any(part in path for part in parts):
            account = each
    if any(part in path for part in WAITS) and library:
        account = "wait"
    of_library, evaluates = bool(account), False
    if not standard and not is_torch:
        stem = os.path.basename(path).lower()
        for each, (file, function) in IN_FILES.items():
            qualified = getattr(code, "co_qualname", name).rpartition(".")[0].lower()
            if function.search(name) and (file.search(stem) or file.search(qualified) or file.search(name)):
                account = account or each
        for each, function in FUNCTIONS.items():
            if function.search(name):
                evaluates = evaluates or each == "eval"
                account = account or ("" if each == "eval" else each)
        evaluates = evaluates or bool(EVALUATIONS.search(getattr(code, "co_qualname", "")))
    own, framework = user_code.is_own_file(path), not standard and not is_torch
    kind = _Kind(own, not library, framework, torch, account, of_library, evaluates)
    if len(_KINDS) > 20_000:
        _KINDS.clear()
    _KINDS[code] = kind
    return kind


def _on_gpu() -> bool:
    """Returns whether the script uses a GPU. On a CPU no call waits for a device."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and getattr(cuda, "_initialized", False)


def _text(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
