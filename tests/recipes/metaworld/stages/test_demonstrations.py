"""Episodes of a demonstrator in the training of an expert or a student: who acts, and what a checkpoint stores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import runs
from powerband.cli import main as cli
from powerband.core.noise import NoiseSource
from powerband.data.types import Step
from powerband.recipes.metaworld.config import Config

pytest.importorskip("metaworld", reason="metaworld is not installed: pip install 'powerband[metaworld]'")

from powerband.recipes.metaworld.env.gymnasium_env import scripted_policy
from powerband.recipes.metaworld.nets.collective import CollectiveActorCritic, shared_state
from powerband.recipes.metaworld.stages.demonstrations import (
    Demonstrations,
    Demonstrator,
    collective_demonstrator,
    scripted_demonstrator,
)

ENVS = 400
NONE = torch.zeros(ENVS, dtype=torch.bool)


def demonstrations(demonstrator: Demonstrator | None = None, share: float = 0.5, **options: Any) -> Demonstrations:
    run = SimpleNamespace(
        device=torch.device("cpu"),
        noise=NoiseSource(0),
        metrics=SimpleNamespace(add_masked=lambda *_: None),
        register=lambda *_, **__: None,
    )
    demonstrator = demonstrator or scripted_demonstrator(Config(task="drawer-open"), ENVS)
    settings = {"share": share, "noise": 0.2, "handover": 0, "horizon": 400, **options}
    return Demonstrations(run, SimpleNamespace(num_envs=ENVS), demonstrator, **settings)


def step(ended: torch.Tensor, success: torch.Tensor | None = None) -> Step:
    figures = {"success": torch.zeros(ENVS) if success is None else success}
    return Step(torch.zeros(ENVS, 39), torch.zeros(ENVS), NONE, ended, episode=figures)


def test_the_script_acts_with_noise_in_its_share_of_the_environments():
    shared = demonstrations(share=0.25, noise=0.1)
    acts = shared.left > 0
    assert 70 < int(acts.sum()) < 130
    torch.manual_seed(0)
    obs, own = torch.rand(ENVS, 39), torch.rand(ENVS, 4)
    actions = shared.replace(obs, own)
    assert torch.equal(actions[~acts], own[~acts])
    script = scripted_policy("drawer-open")
    clean = torch.stack([torch.from_numpy(script(row.numpy())).float() for row in obs[acts]])
    error = actions[acts] - clean
    inside = (clean.abs() < 0.5).expand_as(error)
    assert float(error[inside].std()) == pytest.approx(0.1, rel=0.2) and float(actions.abs().max()) <= 1


@pytest.mark.parametrize("keys", [("obs",), ("obs", "z"), ("z", "s")], ids=["student", "bonus", "student_finetune"])
def test_the_collective_policy_acts_in_its_share_of_the_episodes_of_a_student(keys):
    torch.manual_seed(0)
    collective = CollectiveActorCritic(code=3, hidden=(8,))
    observation, z, own = torch.rand(ENVS, 39), torch.rand(ENVS, 3), torch.rand(ENVS, 4)
    obs = {name: {"obs": observation, "z": z, "s": shared_state(observation)}[name] for name in keys}
    env = SimpleNamespace(codes=lambda rows: z[rows])
    guided = demonstrations(collective_demonstrator(collective, env), noise=0.0)
    acts, actions = guided.left > 0, guided.replace(obs, own)
    assert torch.equal(actions[~acts], own[~acts]) and 150 < int(acts.sum()) < 250
    torch.testing.assert_close(actions[acts], collective.policy(z, shared_state(observation))[0][acts])


def test_another_policy_acts_after_the_end_of_an_episode_only():
    shared = demonstrations()
    before, ended = shared.left > 0, torch.arange(ENVS) < ENVS // 2
    shared.after_step(step(ended))
    acts = shared.left > 0
    assert torch.equal(acts[~ended], before[~ended])
    changed = (acts != before)[ended].float().mean()
    assert 0.4 < float(changed) < 0.6


def test_the_expert_takes_over_within_the_first_steps_of_an_episode():
    shared = demonstrations(handover=9)
    lengths = shared.left.bincount(minlength=10)
    assert len(lengths) == 10 and 180 < int(lengths[0]) < 260 and int(lengths[1:].min()) > 5
    for passed in range(1, 10):
        shared.after_step(step(NONE))
        assert int((shared.left > 0).sum()) == int(lengths[passed + 1 :].sum())
    assert torch.equal(shared.replace(torch.rand(ENVS, 39), own := torch.rand(ENVS, 4)), own)


def test_episodes_that_the_script_began_do_not_count_as_successes_of_the_expert():
    shared = demonstrations(handover=1)
    counted: dict[str, torch.Tensor] = {}
    shared.metrics.add_masked = lambda name, values, mask: counted.update({name: values[mask]})
    alone = shared.left == 0
    for ended in (NONE, NONE, ~NONE):  # the script acts in no first step any more
        shared.after_step(step(ended, success=(~alone).float()))
    successes = counted["charts/success_alone"]
    assert len(successes) == int(alone.sum()) > 100 and not successes.any()


def test_a_checkpoint_stores_who_acts(tmp_path):
    sizes = "variant=smoke gpus=none threads=1 tensorboard=false sac.hidden=16 final_episodes=0 off_policy.num_envs=4"
    demonstrated = ["task=drawer-open", "demo_share=0.5", "sac.layer_norm=true", f"project={tmp_path}"]
    folder = tmp_path / "run"
    command = ["train", "metaworld", "expert", *sizes.split(), *demonstrated, f"run_dir={folder}"]
    assert cli.main([*command, "expert_steps=300"]) == 0
    stored = {name: value for name, value in runs.state(folder).items() if "demonstrations" in name and "left" in name}
    assert len(stored) == 1 and next(iter(stored.values())).shape == (4,)
    assert cli.main(["train", "metaworld", "expert", f"resume={folder}", "expert_steps=400"]) == 0
    shared, other = demonstrations(), demonstrations(share=0.1)
    other.load_state_dict(shared.state_dict())
    assert torch.equal(other.left, shared.left)


def test_a_handover_without_demonstrations_is_refused(capsys):
    assert cli.main(["train", "metaworld", "expert", "task=reach", "demo_handover=50"]) != 0
    assert "demo_handover=50 has no effect with demo_share=0" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["guide_handover=50", "guide_noise=0.3"])
def test_options_of_a_guide_without_a_guide_are_refused(option, capsys):
    assert cli.main(["train", "metaworld", "student", "task=reach", f"student.{option}"]) != 0
    assert f"student.{option} has no effect with student.guide_share=0" in capsys.readouterr().err
