"""Section recipes: builds each recipe's networks and times one act and one update on each device.

A recipe is handed over by the command line and takes part with a function ``networks(config, device, precision)`` that
returns a learner, what it sees, and its loop's sizes. Batches are made up: random observations, the learner's own
actions, and every figure that a loop stores beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerband.core.precision import Precision, faster
from powerband.data.types import EnvSpec, Learner, TensorSpec, Tree, tree_map
from powerband.doctor.row import Row, fail, ok, skipped
from powerband.doctor.scope import Check, Scope
from powerband.doctor.stopwatch import seconds_a_call

SEQUENCE = 16
"""Steps of a sequence where the learner has memory; a mini-batch has as many rows fewer."""


def checks(scope: Scope) -> list[Check]:
    """Every algorithm of every recipe on every device."""
    found: list[Check] = []
    for name, load in scope.recipes.items():
        algorithms: list[str | None]
        try:
            algorithms = list(getattr(load(), "SECTIONS", None) or {}) or [None]
        except Exception:  # the check of this recipe says what it is
            algorithms = [None]
        for algo in algorithms:
            label = f"{name} {algo}" if algo else name
            for device in scope.devices:
                title = f"{label} {device}"
                found.append((title, lambda t=title, f=load, a=algo, d=device: recipe_row(t, f, a, d)))
    return found or [("recipes", lambda: skipped("recipes", "no recipe was handed over"))]


def recipe_row(title: str, load: Callable[[], Any], algo: str | None, device: torch.device) -> Row:
    """Milliseconds of one act and of one update, at the sizes of the recipe's defaults."""
    try:
        recipe = load()
        if not hasattr(recipe, "networks"):
            return skipped(title, "this recipe has no networks(config, device, precision) to be timed")
        config = recipe.Config(**({"algo": algo} if algo else {}))
        config = recipe.settle(config, recipe.DEFAULT_STAGE) if hasattr(recipe, "settle") else config
        name = config.run.precision if device.type == "cuda" or config.run.precision != "fp16" else "fp32"
        name = faster(device)[0] if name == "auto" else name
        learner, spec, loop = recipe.networks(config, device, Precision(name, device))
    except ModuleNotFoundError as error:
        return skipped(title, f"needs {error.name}", f"powerband doctor simulators says how to install {error.name}.")
    except ValueError as error:  # the default environment of another algorithm, for instance
        return skipped(title, f"its defaults do not build: {' '.join(str(error).split())}")
    update_rows = rows_of_update(loop)
    act_rows = getattr(loop, "num_envs", update_rows)  # who learns from records acts for as many as it learns from
    obs = observations(spec, device, act_rows)
    carry = learner.initial_carry(act_rows)
    act_s = seconds_a_call(lambda: learner.act(obs, carry, True), device)
    batch = made_up_batch(learner, spec, device, update_rows)
    figures = learner.update(batch)
    update_s = seconds_a_call(lambda: learner.update(batch), device)
    count = sum(tensor.numel() for tensor in learner.policy_state().values())
    text = (
        f"{count / 1e3:,.0f}k policy parameters, {name}, act {act_s * 1e3:.2f} ms ({act_rows} envs), "
        f"update {update_s * 1e3:.2f} ms ({update_rows} rows)"
    )
    measured = {"act_ms": round(act_s * 1e3, 3), "update_ms": round(update_s * 1e3, 3), "act_envs": act_rows}
    measured |= {"update_rows": update_rows, "policy_parameters": count, "precision": name}
    bad = sorted(tag for tag, value in figures.items() if not bool(torch.isfinite(torch.as_tensor(value)).all()))
    if bad:
        return fail(
            title,
            f"{text}; not finite: {', '.join(bad)}",
            "Run it with precision=fp32: where that is finite "
            "this device computes it wrongly in the other precision, report it.",
            **measured,
        )
    return ok(title, text, **measured)


def rows_of_update(loop: Any) -> int:
    """Rows of one update as a loop's sizes say: its batch, or a mini-batch of its rollout."""
    if hasattr(loop, "global_batch_size"):
        return getattr(loop, "batch_size_per_rank", 0) or loop.global_batch_size
    return loop.minibatch_rows or loop.num_envs * loop.num_steps // loop.minibatches


def observations(spec: EnvSpec, device: torch.device, *lead: int) -> Tree:
    """Random observations (*lead, ...) of the shapes of `spec`; every action is allowed."""

    def leaf(wanted: TensorSpec) -> Tensor:
        shape = (*lead, *wanted.shape)
        if wanted.dtype == torch.bool:
            return torch.ones(shape, dtype=torch.bool, device=device)
        if wanted.dtype.is_floating_point:
            return torch.randn(shape, device=device).to(wanted.dtype)
        return torch.randint(0, 2, shape, device=device).to(wanted.dtype)

    return tree_map(leaf, spec.obs)


def made_up_batch(learner: Learner, spec: EnvSpec, device: torch.device, rows: int) -> dict[str, Tree]:
    """A batch of `rows` rows with everything that the loops hand to `update`; sequences where there is memory.

    Where the learner makes its own targets of a rollout, every agent of a step is a row.
    """
    agents = () if spec.num_agents is None else (spec.num_agents,)
    own_targets = hasattr(learner, "targets")
    rows = max(1, rows // spec.num_agents) if own_targets else rows
    memory = learner.initial_carry(1) is not None
    steps = min(SEQUENCE, rows) if memory else 1
    rows = rows // steps
    made = []
    carry = first = learner.initial_carry(rows)
    for _ in range(steps):
        obs = observations(spec, device, rows)
        action, extras, carry = learner.act(obs, carry, True)
        made.append({"obs": obs, "next_obs": observations(spec, device, rows), "action": action, **extras})
    lead: tuple[int, ...] = (steps, rows) if memory else (rows,)
    batch = tree_map(lambda *leaves: torch.stack(leaves), *made) if memory else made[0]
    for name in ("reward", "advantages", "returns"):
        batch[name] = torch.randn(*lead, *agents, device=device)
    for name in ("terminated", "truncated"):
        batch[name] = torch.zeros(lead, dtype=torch.bool, device=device)
    if own_targets:
        rollout = learner.targets(tree_map(lambda leaf: leaf.unsqueeze(0), batch), 0.99, 0.8)
        return {name: values.flatten(0, 1) for name, values in rollout.items()}
    if memory:
        batch |= {"carry": first, "starts": torch.zeros(lead, dtype=torch.bool, device=device)}
    return batch
