"""Every option of the older project sets an option here or is refused with the option to use."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import runs  # noqa: F401  sets the environment of the command line
from powerband.cli import main as cli
from powerband.cli.catalogue import configure
from powerband.core.config.schema import fields_of
from powerband.core.errors import ConfigError
from powerband.recipes.metaworld import RECIPE
from powerband.recipes.metaworld.config import Config
from powerband.recipes.metaworld.project_folder import load_policy, save_policy


def read(*arguments: str):
    """Returns stage, configuration and notices of a command line."""
    _, stage, resolved = configure("metaworld", list(arguments))
    return stage, resolved.config, " ".join(resolved.notices)


def test_the_first_command_of_the_guide():
    stage, config, notices = read(
        "--config-name=gpu_server_collective_config",
        "setup=gpu_server_metaworld",
        "env=metaworld-mt1",
        "worker.multitask.num_envs=16",
        "experiment.mode=train_worker",
        "env.benchmark.env_name=reach-v2",
        "experiment.num_train_steps=100000",
    )
    assert stage == "expert" and config.task == "reach" and config.run.env_steps == 100_000
    assert config.off_policy.num_envs == 16 and config.off_policy.global_batch_size == 2048
    assert "reach-v3 only" in notices and "variant=gpu-server" in notices


@pytest.mark.parametrize(
    ("mode", "stage"), [("distill_collective_transformer", "distill"), ("train_student", "student")]
)
def test_modes_are_stages(mode, stage):
    assert (
        read("setup=gpu_server_metaworld", f"experiment.mode={mode}", "env.benchmark.env_name=door-open-v2")[0] == stage
    )


def test_the_variants_equal_the_presets_of_the_guide():
    _, single, _ = read("variant=single")
    assert (single.off_policy.num_envs, single.off_policy.global_batch_size) == (1, 512)
    assert (single.sac.policy_interval, single.sac.target_interval, single.sac.actor_lr) == (2, 2, 3e-4)
    assert (single.off_policy.replay_size, single.collect.interval, single.collect.samples) == (140_000, 10_000, 800)
    _, server, _ = read("variant=gpu-server")
    assert (server.sac.policy_interval, server.sac.target_interval, server.sac.critic_lr) == (1, 1, 1e-3)
    assert (server.off_policy.replay_size, server.collect.size) == (500_000, 5_000_000)
    assert (server.collect.interval, server.collect.samples) == (5_000, 1_600)
    assert (server.run.eval_interval, server.run.save_interval) == (2_000, 10_000)
    for config in (single, server):
        assert config.off_policy.schedule().ratio == 1, "one update per environment step, as in the guide"


OPTIONS = {
    "experiment.num_student_online_trainsteps2=5000": ("student", lambda c: c.run.env_steps, 5000),
    "experiment.init_steps_stu2=2000": ("student", lambda c: c.off_policy.random_steps, 2000),
    "experiment.num_actor_train_step=77": ("distill", lambda c: c.run.env_steps, (77 + 10_000) * 128),
    "experiment.col_sampling_freq=5000": ("expert", lambda c: c.collect.interval, 5000),
    "experiment.save_freq=123": ("expert", lambda c: c.run.save_interval, 123),
    "experiment.eval_freq=321": ("expert", lambda c: c.run.eval_interval, 321),
    "replay_buffer.batch_size=1024": ("expert", lambda c: c.off_policy.global_batch_size, 1024),
    "replay_buffer.capacity=9999": ("expert", lambda c: c.off_policy.replay_size, 9999),
    "col_replay_buffer.batch_size=256": ("distill", lambda c: c.offline.global_batch_size, 256),
    "col_replay_buffer.capacity=2000": ("expert", lambda c: c.collect.size, 2000),
    "worker.builder.actor_update_freq=1": ("expert", lambda c: c.sac.policy_interval, 1),
    "worker.builder.critic_target_update_freq=1": ("expert", lambda c: c.sac.target_interval, 1),
    "student.builder.actor_update_freq=3": ("student", lambda c: c.sac.policy_interval, 3),
    "gpu_optimizations.use_amp=true": ("expert", lambda c: c.run.precision, "bf16"),
    "gpu_optimization.compile_model=true": ("expert", lambda c: c.sac.compile, True),
    "gpu_optimizations.compile_model=true": ("distill", lambda c: c.represent.compile and c.distill.compile, True),
    "gpu_optimizations.gradient_checkpointing=true": (
        "represent",
        lambda c: c.represent.net.gradient_checkpointing,
        True,
    ),
    "gpu_optimizations.gradient_clipping=0.5": ("distill", lambda c: c.distill.max_grad_norm, 0.5),
    "gpu_optimizations.num_workers=8": ("distill", lambda c: c.offline.loader_threads, 8),
    "distributed.world_size=4": ("expert", lambda c: c.run.nproc, 4),
}


@pytest.mark.parametrize("option", list(OPTIONS))
def test_each_old_option_sets_its_value(option):
    stage, value, expected = OPTIONS[option]
    assert value(read(stage)[1]) != expected
    assert value(read(stage, option)[1]) == expected


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("off_policy.warmup=7", lambda c: c.off_policy.learning_starts, 7),
        ("warmup=7", lambda c: c.off_policy.learning_starts, 7),
        ("stop_after=7", lambda c: c.stop_after_successes, 7),
        ("imitate.teacher_from=7", lambda c: c.imitate.teacher_start_step, 7),
        ("distill.spread=7", lambda c: c.distill.log_std_coef, 7),
        ("represent.mask=0.7", lambda c: c.represent.mask_ratio, 0.7),
    ],
)
def test_options_of_earlier_versions_still_work(option, value, expected):
    _, config, notices = read(option)
    assert value(config) == expected and option.partition("=")[0] in notices


def test_old_names_lead_to_options_that_exist():
    fields = fields_of(RECIPE.Config)
    for old, entry in RECIPE.old_names.items():
        new = entry if isinstance(entry, str) or entry is None else entry[0]
        assert old not in fields and (not new or new in fields), (old, new)


def test_a_policy_with_old_names_in_its_configuration_can_be_read(tmp_path):
    config = Config(project=str(tmp_path), stop_after_successes=3)
    save_policy(tmp_path, config, {"weight": torch.ones(1)})
    path = tmp_path / "policy" / "config.json"
    stored = json.loads(path.read_text())
    stored["stop_after"] = stored.pop("stop_after_successes")
    del stored["represent"]["mask_ratio"]
    stored["represent"]["mask"] = 0.5
    path.write_text(json.dumps(stored))
    restored, tensors = load_policy(tmp_path, "powerband train metaworld expert")
    assert restored == replace(config, represent=replace(config.represent, mask_ratio=0.5))
    assert tensors["weight"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("distributed.rank=1", "nproc=2"),
        ("transformer_collective_network.builder.actor_update_freq=2", "distill.actor_updates"),
        ("transformer_collective_network.builder.critic_target_update_freq=2", "no target critics"),
    ],
)
def test_unsupported_options_are_refused_with_the_fix(option, instead):
    with pytest.raises(ConfigError, match=instead):
        read(option)


@pytest.mark.parametrize("option", ["update_interval", "updates_per_interval", "gamma", "anneal_from", "obs_scale"])
def test_short_names_of_an_expert_belong_to_one_section(option):
    read(f"{option}=1")


def test_each_stage_has_its_own_budget():
    assert read("task=drawer-close")[1].run.env_steps == 200_000
    assert read("task=reach", "expert_steps=7")[1].run.env_steps == 7
    assert read("online_distill")[1].run.env_steps == 60_000
    assert read("represent", "represent_updates=10")[1].run.env_steps == 10 * 128
    assert read("student", "env_steps=50")[1].run.env_steps == 50, "env_steps replaces the budget of the stage"


def test_invalid_options_are_refused(capsys):
    with pytest.raises(ConfigError, match="Nearest: door-open"):
        read("task=door-opn")
    with pytest.raises(ConfigError, match="num_envs=10"):
        RECIPE.check_sizes(read("variant=mt10", "off_policy.num_envs=12")[1], 1)
    with pytest.raises(ConfigError, match="num_workers=9"):
        RECIPE.check_sizes(read("num_workers=9", "off_policy.num_envs=4")[1], 1)
    assert cli.main(["train", "metaworld", "expert", "expert_steps=-1"]) == 2
    assert "expert_steps=-1 (command line): -1 is below 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stage", "command"),
    [
        ("online_distill", "powerband train metaworld expert task=reach"),
        ("represent", "powerband train metaworld online_distill task=reach"),
        ("distill", "powerband train metaworld represent"),
        ("student", "powerband train metaworld represent"),
        ("student_finetune", "powerband train metaworld represent"),
    ],
)
def test_a_missing_stage_is_reported_with_its_command(stage, command, tmp_path, capsys):
    arguments = f"variant=smoke gpus=none project={tmp_path / 'project'} run_dir={tmp_path / 'run'}".split()
    assert cli.main(["train", "metaworld", stage, *arguments]) == 2
    message = capsys.readouterr().err
    assert f"{command} project={tmp_path / 'project'} first" in message or f"Write {command}" in message


def test_data_of_another_reward_version_are_refused(tmp_path, capsys):
    folder = tmp_path / "experts" / "reach" / "data"
    folder.mkdir(parents=True)
    facts = {"task": "reach", "reward_version": "v1"}
    (folder / "manifest.json").write_text(
        json.dumps({"format": 1, "rows": 0, "fields": {}, "shards": [], "facts": facts})
    )
    arguments = f"variant=smoke gpus=none tasks=reach project={tmp_path} run_dir={tmp_path / 'run'}".split()
    assert cli.main(["train", "metaworld", "represent", *arguments]) == 2
    assert "reward_version v1, wanted v2" in capsys.readouterr().err
