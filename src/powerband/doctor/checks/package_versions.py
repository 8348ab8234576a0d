"""Package versions: compares the versions of Python and of the installed packages with powerband's requirements."""

from __future__ import annotations

import platform
import re
from importlib import metadata

from powerband.doctor.check_result import CheckResult, fail, ok, skipped, warn


def versions_row() -> CheckResult:
    """Compares the versions of Python and of the packages with the requirements of powerband."""
    try:
        requirements = metadata.requires("powerband") or []
        python_limits = metadata.metadata("powerband")["Requires-Python"]
    except metadata.PackageNotFoundError:
        return skipped("versions", "powerband runs from its source tree and is not installed", "Run pip install -e .")
    versions = {"python": platform.python_version()}
    problems: list[str] = []
    extras: list[str] = []
    if python_limits and not satisfies(python_limits, versions["python"]):
        problems.append(f"Python {versions['python']} (required: {python_limits})")
    for requirement in requirements:
        specifier, _, condition = requirement.partition(";")
        match = re.match(r"\s*([\w.-]+)(?:\[[^\]]*\])?\s*\(?([^)]*)", specifier)
        assert match is not None, requirement
        name, limits = match.groups()
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if not condition:
                problems.append(f"{name} is missing (required: {limits.strip() or 'any version'})")
            continue
        versions[name] = version
        if not satisfies(limits, version):
            (extras if "extra" in condition else problems).append(f"{name} {version} (required: {limits.strip()})")
    shown = ("python", "torch", "numpy", "numba", "gymnasium", "mujoco")
    text = ", ".join(f"{name} {versions.get(name, 'not installed')}" for name in shown)
    if problems:
        return fail(
            "versions",
            f"{text}; unsupported: {', '.join(dict.fromkeys(problems))}",
            "Run pip install powerband again in a separate environment.",
            versions=versions,
        )
    if extras:  # another project may have installed them
        return warn(
            "versions",
            f"{text}; unsupported for optional features: {', '.join(dict.fromkeys(extras))}",
            "If you use these features, install their extra in a separate environment: pip install 'powerband[EXTRA]'.",
            versions=versions,
        )
    return ok("versions", f"{text}; all as required", versions=versions)


def satisfies(limits: str, version: str) -> bool:
    """Returns whether a version is within limits such as ``>=3.3,<4``.

    Args:
        limits: Comparisons, separated by commas; empty allows every version.
        version: Version; suffixes such as ``+cpu`` and ``rc1`` are ignored.
    """
    actual = _release(version)
    for limit in filter(None, (part.strip() for part in limits.split(","))):
        match = re.match(r"(>=|<=|==|!=|~=|>|<)\s*(.*)", limit)
        assert match is not None, limit
        sign, text = match.groups()
        bound = _release(text)
        length = max(len(actual), len(bound))
        left, right = (numbers + (0,) * (length - len(numbers)) for numbers in (actual, bound))
        has_prefix = actual[: len(bound)] == bound
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            ">": left > right,
            "<": left < right,
            "==": has_prefix if text.endswith("*") else left == right,
            "!=": not (has_prefix if text.endswith("*") else left == right),
            "~=": left >= right and actual[: len(bound) - 1] == bound[:-1],
        }
        if not holds[sign]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
