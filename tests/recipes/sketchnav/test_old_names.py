"""Old names: each setting of the guide and of earlier versions maps to a setting, or is refused with the one to use."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest

from powerband.cli.catalogue import configure
from powerband.core.config.schema import fields_of
from powerband.core.errors import ConfigError
from powerband.recipes.sketchnav import OLD_NAMES, RECIPE

RENAMED = [
    (["--gpu-ids", "0,2"], "run.gpus", "0,2"),
    (["--num-gpus", "3"], "run.gpus", "0,1,2"),
    (["--model-dir", "out"], "run.run_dir", "out"),
    (["NUM_PROCESSES=12"], "on_policy.num_envs", 12),
    (["CHECKPOINT_INTERVAL=500"], "run.save_interval", 500 * 64 * 150),
    (["algo=clone", "CHECKPOINT_INTERVAL=500", "batch_size_per_rank=8"], "run.save_interval", 500 * 8),
    (["USE_SYNC_VECENV=True"], "num_workers", 0),
    (["DEBUG=True"], "run.log_interval_s", 1.0),
    (["RL.DIFFUSION.lr=3e-4"], "algo", "diffusion"),
    (["GPU_IDS=1"], "run.gpus", "1"),
    (["DATASET.DATA_PATH=mine.safetensors"], "episode_file", "mine.safetensors"),
    (["RL.PPO.num_steps=75"], "on_policy.num_steps", 75),
    (["RL.PPO.num_mini_batch=4"], "on_policy.minibatches", 4),
    (["RL.PPO.ppo_epoch=2"], "on_policy.epochs", 2),
    (["RL.PPO.clip_param=0.3"], "ppo.clip", 0.3),
    (["RL.PPO.lr=0.001"], "ppo.lr", 1e-3),
    (["RL.PPO.entropy_coef=0.2"], "ppo.entropy_coef", 0.2),
    (["RL.PPO.value_loss_coef=0.7"], "ppo.value_coef", 0.7),
    (["RL.PPO.max_grad_norm=0.2"], "ppo.max_grad_norm", 0.2),
    (["RL.PPO.gamma=0.9"], "on_policy.gamma", 0.9),
    (["RL.PPO.tau=0.8"], "on_policy.gae_lambda", 0.8),
    (["algo=diffusion", "RL.DIFFUSION.lr=3e-4"], "chunks.lr", 3e-4),
    (["keep_episodes=false"], "cache_episodes", False),
    (["scenes.least_m=9"], "scenes.min_size_m", 9.0),
    (["most_m=20"], "scenes.max_size_m", 20.0),
    (["scenes.least_way_m=3"], "scenes.min_path_m", 3.0),
    (["most_way_m=20"], "scenes.max_path_m", 20.0),
    (["scenes.least_ratio=1.2"], "scenes.min_path_ratio", 1.2),
    (["net.pictures=efficient"], "net.image_encoder", "efficient"),
    (["around_m=6"], "net.crop_m", 6.0),
    (["net.around_px=40"], "net.crop_px", 40),
    (["learn_size=false"], "net.learn_page_size", False),
    (["algo=clone", "chunks.execute=2"], "chunks.exec_horizon", 2),
]


@pytest.mark.parametrize(("arguments", "path", "value"), RENAMED, ids=lambda value: str(value))
def test_an_old_name_sets_the_new_setting(arguments: list[str], path: str, value: object) -> None:
    resolved = configure("sketchnav", arguments)[2]
    assert attrgetter(path)(resolved.config) == value
    assert attrgetter(path)(configure("sketchnav", [])[2].config) != value


def test_a_file_of_the_guide_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text("NUM_PROCESSES: 6\nRL:\n  PPO:\n    num_steps: 50\n    lr: 1e-4\n")
    config = configure("sketchnav", ["--config", str(file)])[2].config
    assert (config.on_policy.num_envs, config.on_policy.num_steps, config.ppo.lr) == (6, 50, 1e-4)


@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ("--run-type=eval", "powerband eval RUN"),
        ("--eval-best=true", "powerband eval RUN --eval-best"),
        ("TORCH_GPU_ID=0", "gpus=0,2"),
    ],
)
def test_a_setting_without_a_counterpart_is_refused_with_advice(argument: str, advice: str) -> None:
    with pytest.raises(ConfigError, match="is not supported") as error:
        configure("sketchnav", [argument])
    assert advice in str(error.value)


def test_pickled_checkpoints_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "ckpt.5.pth").write_bytes(b"")
    with pytest.raises(ConfigError, match="is a pickle, which can execute code"):
        configure("sketchnav", ["--resume-from", str(tmp_path / "ckpt.5.pth")])


def test_old_names_lead_to_settings_that_exist_and_hide_none() -> None:
    settings = fields_of(RECIPE.Config)
    targets = {new if isinstance(new, str) else new[0] for new in OLD_NAMES.values()} - {None, "", "config"}
    assert targets <= settings.keys()
    assert not OLD_NAMES.keys() & (settings.keys() | {path.rpartition(".")[2] for path in settings} | targets)
