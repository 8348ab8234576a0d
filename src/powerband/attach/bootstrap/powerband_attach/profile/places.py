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
    "store": (
        re.compile(r"buffer|replay|memor|storage|collector"),
        re.compile(r"^_?(add|store|push|append|extend|put|set)"),
    ),
    "sample": (re.compile(r"buffer|replay|memor|storage|sampler"), re.compile(r"sample|^_?get|gather|batch")),
}
"""Account -> (pattern of the name of a file or of a class's method, pattern of the name of the function).

The first that matches decides, so ``add_samples`` stores.
"""
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


class Function:
    """What a function of a stack says, from its file and its name.

    There is one object per code object, which it keeps alive. A dictionary whose keys are code objects would be slow,
    because Python hashes all constants of a code object at each access.

    Attributes:
        code: Its code object.
        own: Whether it belongs to this package.
        user: Whether it belongs to the user's code.
        user_or_framework: Whether it belongs neither to torch nor to the standard library.
        torch: "module" or "tensor" as in `Place`; "" outside of torch.
        account: Account that it belongs to, or ``wait``; "" if it shows none.
        of_library: Whether the account is that of its library, and not that of its name.
        evaluates: Whether it evaluates, to judge by its name.
    """

    __slots__ = ("account", "code", "evaluates", "of_library", "own", "torch", "user", "user_or_framework")

    def __init__(self, code: CodeType) -> None:
        path, name = code.co_filename, code.co_name
        compiled, standard = user_code.is_compiled_file(path), user_code.is_standard_file(path)
        library = compiled or standard or user_code.is_package_file(path)
        is_torch = compiled or (library and user_code.is_torch_file(path))
        self.code = code
        self.own, self.user = user_code.is_own_file(path), not library
        self.user_or_framework = not standard and not is_torch
        self.torch = ("module" if path.endswith("/torch/nn/modules/module.py") else "tensor") if is_torch else ""
        self.account, self.evaluates = "", False
        for each, parts in FILES.items():
            if library and any(part in path for part in parts):
                self.account = each
        if any(part in path for part in WAITS) and library:
            self.account = "wait"
        self.of_library = bool(self.account)
        if self.user_or_framework:
            self._judge_by_name(path, name, getattr(code, "co_qualname", name))  # new in Python 3.11

    def _judge_by_name(self, path: str, name: str, qualified: str) -> None:
        stem, holder = os.path.basename(path).lower(), qualified.rpartition(".")[0].lower()
        for each, (file, function) in IN_FILES.items():
            if function.search(name) and (file.search(stem) or file.search(holder) or file.search(name)):
                self.account = self.account or each
        for each, function in FUNCTIONS.items():
            if function.search(name):
                self.evaluates = self.evaluates or each == "eval"
                self.account = self.account or ("" if each == "eval" else each)
        self.evaluates = self.evaluates or bool(EVALUATIONS.search(qualified))


class Place(NamedTuple):
    """What a stack is doing.

    Attributes:
        account: Account that the stack shows for certain, or ``wait`` for another process; "" if it shows none.
        torch: Whether torch computes: "module" inside of a network, "tensor" otherwise, "" if it does not.
        line: Innermost line of the user's code, as ``path:line``; "" if there is none.
        caller: Line of the user's code that called it from another function; "" if there is none.
        library: Innermost line outside of the user's code, of torch and of the standard library; "" if there is none.
        functions: Those of the stack outside of torch and of the standard library, the innermost first.
        evaluations: Those that evaluate, to judge by their names. `callers` decides.
    """

    account: str
    torch: str
    line: str
    caller: str
    library: str
    functions: tuple[Function, ...]
    evaluations: tuple[Function, ...] = ()


def place_of(frame: FrameType) -> Place:
    """Finds out what the stack that ends in `frame` is doing."""
    account, torch, line, caller, library = "", "", "", "", ""
    line_code: CodeType | None = None
    first = True
    functions: list[Function] = []
    evaluations: list[Function] = []
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        function = _FUNCTIONS.get(id(code)) or _function(code)
        if function.own:  # frames inside of a span, such as of a reward function, do not make it an evaluation
            evaluations.clear()
            current = current.f_back
            continue
        if first and function.user_or_framework and _on_gpu() and SYNCHRONISATIONS.search(_text(current)):
            account = "h2d"
        first = False
        if not account and function.account:
            if not _calls_other_code(function, bool(functions), line_code is not None):
                account = function.account
        if function.evaluates:
            evaluations.append(function)
        if function.torch and torch != "module":
            torch = function.torch
        if function.user_or_framework:
            functions.append(function)
        if function.user:
            if line_code is None:
                line, line_code = f"{code.co_filename}:{current.f_lineno}", code
            elif not caller and code is not line_code:
                called_from = f"{code.co_filename}:{current.f_lineno}"
                caller = called_from if called_from != line else ""  # a comprehension is a function in this line
        elif function.user_or_framework and not library and line_code is None:
            library = f"{code.co_filename}:{current.f_lineno}"
        current = current.f_back
    return Place(account, torch, line, caller, library, tuple(functions), tuple(evaluations))


def _calls_other_code(function: Function, below: bool, user_below: bool) -> bool:
    """Returns whether a library only calls code of others, which is not its work: a worker process, a progress bar.

    A batch loader calls the user's data set, which is a part of its work.

    Args:
        function: Function of the library.
        below: Whether it has called a function of the user or of a framework.
        user_below: Whether it has called a function of the user.
    """
    if function.account == "wait":
        return below
    return function.of_library and user_below and function.account != "data_wait"


MOST_FUNCTIONS = 20_000
"""Number of functions to remember; a script may make code again and again."""
_FUNCTIONS: dict[int, Function] = {}
"""Identity of a code object -> its function."""


def _function(code: CodeType) -> Function:
    if len(_FUNCTIONS) > MOST_FUNCTIONS:
        _FUNCTIONS.clear()
    function = _FUNCTIONS[id(code)] = Function(code)
    return function


def _on_gpu() -> bool:
    """Returns whether the script uses a GPU. On a CPU no call waits for a device."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and getattr(cuda, "_initialized", False)


def _text(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
