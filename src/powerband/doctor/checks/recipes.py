"""Section recipes of ``powerband doctor``: builds the networks of each recipe and times one act and one update.

Every device is measured. A recipe is included if it has a ``build_learner``. Batches are synthetic: they contain random
observations, actions of the learner, and all other values that a training loop stores with a transition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from powerband.core.optim.precision import faster_precision
from powerband.core.rank_context import RankContext
from powerband.core.recipe import Recipe, load_object
from powerband.data.types import EnvSpec, Learner, TargetLearner, TensorSpec, Tree, tree_map
from powerband.doctor.check_result import CheckResult, fail, ok, skipped
from powerband.doctor.context import Check, CheckContext
from powerband.doctor.stopwatch import seconds_per_call

SEQUENCE_STEPS = 16
"""Steps per sequence for a recurrent learner; the number of steps in the batch is the same as for other learners."""


def checks(context: CheckContext) -> list[Check]:
    """Returns the checks of this section, one for every algorithm of every recipe on every device."""
    result: list[Check] = []
    for name, load in context.recipes.items():
        algorithms: list[str | None]
        try:
            algorithms = list(load().algorithms) or [None]
        except Exception:  # the check itself reports the error
            algorithms = [None]
        for algo in algorithms:
            label = f"{name} {algo}" if algo else name
            for device in context.devices:
                title = f"{label} {device}"
                result.append((title, partial(recipe_row, title, load, algo, device)))
    return result or [("recipes", lambda: skipped("recipes", "no recipe to check"))]


def recipe_row(title: str, load: Callable[[], Recipe], algo: str | None, device: torch.device) -> CheckResult:
    """Builds the networks of a recipe in its default sizes, and times one call of ``act`` and one of ``update``.

    Args:
        title: Name of the result.
        load: Function that imports the recipe.
        algo: Algorithm of the recipe; None if the recipe has only one.
        device: Device of the networks.
    """
    try:
        recipe = load()
        if recipe.build_learner is None:
            return skipped(title, "this recipe has no build_learner to time")
        config = recipe.Config(**({"algo": algo} if algo else {}))
        config = recipe.finalized(config, recipe.default_stage)
        precision: Any = config.run.precision if device.type == "cuda" or config.run.precision != "fp16" else "fp32"
        precision = faster_precision(device)[0] if precision == "auto" else precision
        context = RankContext.single(device, precision)
        learner, spec, loop = load_object(recipe.build_learner)(config, context)
    except ModuleNotFoundError as error:
        advice = f"powerband doctor simulators shows how to install {error.name}."
        return skipped(title, f"needs the module {error.name}", advice)
    except ValueError as error:  # for example, the default environment may not suit this algorithm
        return skipped(title, f"the default settings cannot be built: {' '.join(str(error).split())}")
    update_rows, act_rows = loop.update_rows, loop.act_rows
    obs = random_observations(spec, device, act_rows)
    carry = learner.initial_carry(act_rows)
    act_s = seconds_per_call(lambda: learner.act(obs, carry, True), device)
    batch = synthetic_batch(learner, spec, device, update_rows)
    losses = learner.update(batch)
    update_s = seconds_per_call(lambda: learner.update(batch), device)
    count = sum(tensor.numel() for tensor in learner.policy_state().values())
    text = (
        f"{count / 1e3:,.0f}k policy parameters, {precision}, act {act_s * 1e3:.2f} ms ({act_rows} envs), "
        f"update {update_s * 1e3:.2f} ms ({update_rows} rows)"
    )
    metrics = {"act_ms": round(act_s * 1e3, 3), "update_ms": round(update_s * 1e3, 3), "act_envs": act_rows}
    metrics |= {"update_rows": update_rows, "policy_parameters": count, "precision": precision}
    invalid = sorted(tag for tag, value in losses.items() if not bool(torch.isfinite(torch.as_tensor(value)).all()))
    if invalid:
        return fail(
            title,
            f"{text}; not finite: {', '.join(invalid)}",
            "Train with precision=fp32. If its losses are finite, this device computes the other precision wrongly: "
            "report it.",
            **metrics,
        )
    return ok(title, text, **metrics)


def random_observations(spec: EnvSpec, device: torch.device, *leading: int) -> Tree:
    """Draws random observations; masks, such as ``action_mask``, are true everywhere, so every action is allowed.

    Args:
        spec: Shapes and types of the environment's observations.
        device: Device of the observations.
        leading: Sizes of the axes before those of the environment, such as the number of rows.

    Returns:
        Observations as a tree of tensors of shape (*leading, ...).
    """

    def leaf(leaf_spec: TensorSpec) -> Tensor:
        shape = (*leading, *leaf_spec.shape)
        if leaf_spec.dtype == torch.bool:
            return torch.ones(shape, dtype=torch.bool, device=device)
        if leaf_spec.dtype.is_floating_point:
            return torch.randn(shape, device=device).to(leaf_spec.dtype)
        return torch.randint(0, 2, shape, device=device).to(leaf_spec.dtype)

    return tree_map(leaf, spec.obs)


def synthetic_batch(learner: Learner, spec: EnvSpec, device: torch.device, rows: int) -> dict[str, Tree]:
    """Builds a batch with random values for everything that the training loops pass to ``update``.

    Args:
        learner: Learner that chooses the actions; a recurrent learner gets sequences.
        spec: Shapes and types of the environment's observations and actions.
        device: Device of the batch.
        rows: Number of transitions. For a `TargetLearner`, which computes its own targets, each agent of a step counts
            as one transition.

    Returns:
        Tree of tensors of shape (rows, ...). For a recurrent learner the shape is (steps, rows // steps, ...), with
        sequences of at most 16 steps.
    """
    agents = () if spec.num_agents is None else (spec.num_agents,)
    if isinstance(learner, TargetLearner):
        rows = max(1, rows // (spec.num_agents or 1))
    recurrent = learner.initial_carry(1) is not None
    steps = min(SEQUENCE_STEPS, rows) if recurrent else 1
    rows = rows // steps
    transitions = []
    carry = first_carry = learner.initial_carry(rows)
    for _ in range(steps):
        obs = random_observations(spec, device, rows)
        action, extras, carry = learner.act(obs, carry, True)
        next_obs = random_observations(spec, device, rows)
        transitions.append({"obs": obs, "next_obs": next_obs, "action": action, **extras})
    leading: tuple[int, ...] = (steps, rows) if recurrent else (rows,)
    batch = tree_map(lambda *leaves: torch.stack(leaves), *transitions) if recurrent else transitions[0]
    for name in ("reward", "advantages", "returns"):
        batch[name] = torch.randn(*leading, *agents, device=device)
    for name in ("terminated", "truncated"):
        batch[name] = torch.zeros(leading, dtype=torch.bool, device=device)
    if isinstance(learner, TargetLearner):
        rollout = learner.targets(tree_map(lambda leaf: leaf.unsqueeze(0), batch), 0.99, 0.8)
        return {name: values.flatten(0, 1) for name, values in rollout.items()}
    if recurrent:
        batch |= {"carry": first_carry, "starts": torch.zeros(leading, dtype=torch.bool, device=device)}
    return batch
