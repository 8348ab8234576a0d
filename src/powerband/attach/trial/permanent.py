"""Permanent: the environment variables, the diff or the sentence that keeps a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from powerband.attach.findings import short_path
from powerband.attach.trial.change import Permanent, variables_of_threads
from powerband.attach.trial.source_edit import argument_diff, class_diff, keyword_diff

LOADER_POSITIONS = {"num_workers": 5, "pin_memory": 7}
"""Argument of ``torch.utils.data.DataLoader`` -> its index in a call that passes it without its name."""
MODE_POSITION = 2
"""Index of ``vectorization_mode`` in a call of ``gymnasium.make_vec`` that passes it without its name."""


def sentence(text: str) -> Permanent:
    """Returns a sentence that says what to change."""
    return Permanent(sentence=text)


def of_variables(variables: Mapping[str, str]) -> Permanent:
    """Returns environment variables."""
    return Permanent(variables=dict(variables))


def of_loader(where: str, name: str, value: int | bool) -> Permanent:
    """Returns the diff of the construction of a loader."""
    diff = keyword_diff(where, ["DataLoader"], name, repr(value), LOADER_POSITIONS.get(name)) if where else ""
    place = f" at {short_path(where)}" if where else ""
    return Permanent(diff=diff, sentence="" if diff else f"Construct the DataLoader{place} with {name}={value!r}.")


def of_vector_env(sites: Sequence[Mapping[str, Any]], mode: str) -> Permanent:
    """Returns the diffs of the constructions of vector environments."""
    old, new = ("SyncVectorEnv", "AsyncVectorEnv") if mode == "async" else ("AsyncVectorEnv", "SyncVectorEnv")
    diffs = []
    for where in dict.fromkeys(site["where"] for site in sites):
        by_function = any(site["where"] == where and site["name"] == "make_vec" for site in sites)
        diffs.append(
            keyword_diff(where, ["make_vec"], "vectorization_mode", f'"{mode}"', MODE_POSITION)
            if by_function
            else class_diff(where, old, new)
        )
    return _diff_or(diffs, f"Use gymnasium.vector.{new} in place of {old}.")


def of_threads(sites: Sequence[Mapping[str, Any]], number: int) -> Permanent:
    """Returns the diffs of calls that set the threads, or the environment variables if the script calls none."""
    if not sites:
        return Permanent(variables=variables_of_threads(number))
    diffs = [argument_diff(site["where"], ["set_num_threads"], str(number)) for site in sites]
    places = ", ".join(short_path(site["where"]) for site in sites)
    return _diff_or(diffs, f"Call torch.set_num_threads({number}) at {places}.")


def of_optimizers(sites: Sequence[Mapping[str, Any]], name: str) -> Permanent:
    """Returns the diffs of the constructions of optimisers."""
    diffs = [keyword_diff(site["where"], [site["name"]], name, "True") for site in sites]
    places = ", ".join(short_path(site["where"]) for site in sites)
    return _diff_or(diffs, f"Construct the optimisers at {places} with {name}=True.")


def _diff_or(diffs: Sequence[str], text: str) -> Permanent:
    """Returns the diffs if every call has one, else the sentence. Two calls in one file need a sentence too."""
    files = [diff.split("\n", 1)[0] for diff in diffs]
    if not diffs or not all(diffs) or len(set(files)) < len(files):
        return Permanent(sentence=text)
    return Permanent(diff="".join(diffs))
