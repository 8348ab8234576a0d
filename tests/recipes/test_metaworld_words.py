"""Every word of the guide of metaworld changes behaviour or is refused with the word to use, and a test shows how."""

from __future__ import annotations

import json

import pytest

import runs  # noqa: F401  puts the command line's environment in place
from powerband import cli
from powerband.catalogue import configure
from powerband.core.config import ConfigError
from powerband.recipes import metaworld


def read(*words: str):
    """(stage, configuration, notices) that `words` make."""
    _, stage, resolved = configure("metaworld", list(words))
    return stage, resolved.config, " ".join(resolved.notices)


def test_the_guides_first_command():
    stage, config, said = read(
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
    assert "reach-v3 only" in said and "variant=gpu-server" in said


@pytest.mark.parametrize(
    ("mode", "stage"), [("distill_collective_transformer", "distill"), ("train_student", "student")]
)
def test_modes_are_stages(mode, stage):
    assert (
        read("setup=gpu_server_metaworld", f"experiment.mode={mode}", "env.benchmark.env_name=door-open-v2")[0] == stage
    )


def test_the_presets_are_those_of_the_guide():
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
        assert config.off_policy.schedule().ratio == 1, "updates for each step stay what they were"


WORDS = {
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
    "gpu_optimizations.gradient_checkpointing=true": (
        "represent",
        lambda c: c.represent.net.gradient_checkpointing,
        True,
    ),
    "gpu_optimizations.gradient_clipping=0.5": ("distill", lambda c: c.distill.max_grad_norm, 0.5),
    "gpu_optimizations.num_workers=8": ("distill", lambda c: c.offline.loader_threads, 8),
    "distributed.world_size=4": ("expert", lambda c: c.run.nproc, 4),
}


@pytest.mark.parametrize("word", list(WORDS))
def test_each_word_sets_what_it_means(word):
    stage, value, expected = WORDS[word]
    assert value(read(stage)[1]) != expected
    assert value(read(stage, word)[1]) == expected


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("distributed.rank=0", "nproc=2"),
        ("distributed.backend=nccl", "gloo"),
        ("transformer_collective_network.builder.actor_update_freq=1", "distill.actor_updates"),
        ("transformer_collective_network.builder.critic_target_update_freq=1", "no target critics"),
    ],
)
def test_words_that_mean_nothing_here_are_refused_with_what_to_write(word, instead):
    with pytest.raises(ConfigError, match=instead):
        read(word)


@pytest.mark.parametrize("word", ["update_interval", "updates_per_interval", "gamma", "anneal_from", "obs_scale"])
def test_short_words_of_an_expert_belong_to_one_section(word):
    read(f"{word}=1")


def test_budgets_are_the_stages_own():
    assert read("task=drawer-close")[1].run.env_steps == 200_000
    assert read("task=reach", "expert_steps=7")[1].run.env_steps == 7
    assert read("online_distill")[1].run.env_steps == 60_000
    assert read("represent", "represent_updates=10")[1].run.env_steps == 10 * 128
    assert read("student", "env_steps=50")[1].run.env_steps == 50, "a budget in steps is taken at its word"


def test_bad_words(capsys):
    with pytest.raises(ValueError, match="Nearest: door-open"):
        read("task=door-opn")
    with pytest.raises(ValueError, match="num_envs=10"):
        metaworld.check(read("variant=mt10", "off_policy.num_envs=12")[1], 1)
    with pytest.raises(ConfigError, match="num_workers=9"):
        metaworld.check(read("num_workers=9", "off_policy.num_envs=4")[1], 1)
    assert cli.main(["train", "metaworld", "expert", "env_steps=0", "expert_steps=-1"]) == 2
    assert "env_steps" in capsys.readouterr().err


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
def test_a_missing_stage_is_named_with_its_command(stage, command, tmp_path, capsys):
    words = f"variant=smoke gpus=none project={tmp_path / 'project'} run_dir={tmp_path / 'run'}".split()
    assert cli.main(["train", "metaworld", stage, *words]) == 2
    said = capsys.readouterr().err
    assert f"{command} project={tmp_path / 'project'} first" in said or f"Write {command}" in said


def test_data_of_another_reward_are_refused(tmp_path, capsys):
    folder = tmp_path / "experts" / "reach" / "data"
    folder.mkdir(parents=True)
    facts = {"task": "reach", "reward_version": "v1"}
    (folder / "manifest.json").write_text(
        json.dumps({"format": 1, "rows": 0, "fields": {}, "shards": [], "facts": facts})
    )
    words = f"variant=smoke gpus=none tasks=reach project={tmp_path} run_dir={tmp_path / 'run'}".split()
    assert cli.main(["train", "metaworld", "represent", *words]) == 2
    assert "reward_version v1, wanted v2" in capsys.readouterr().err
