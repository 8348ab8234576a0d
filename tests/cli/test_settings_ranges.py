"""Ranges of all settings: every number has one, nonsense is refused, and unusual values stay accepted."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import pytest

import powerband
from powerband.cli import main as command_line
from powerband.cli.catalogue import RECIPES, configure, load
from powerband.core.config.ranges import kinds_of, range_of, refusal
from powerband.core.config.schema import fields_of, fields_table
from powerband.core.config.values import bare
from powerband.core.errors import ConfigError
from powerband.core.recipe import load_object

SOURCE = Path(powerband.__file__).parent
NOT_FROM_USERS = {"_Config", "TaskConfig"}
"""Classes with the name of a settings class that the package fills from checked settings."""


def settings_classes() -> Iterator[type]:
    """Every dataclass in the package that checks ranges, is a schema, or is named like one."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and _is_settings(node):
                module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
                yield getattr(importlib.import_module(module), node.name)


def _is_settings(node: ast.ClassDef) -> bool:
    decorators = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
    named = re.fullmatch(r"\w*(Config|Options|Evaluation)", node.name) and node.name not in NOT_FROM_USERS
    return "check_ranges" in decorators or bool(named and "dataclass" in decorators)


def schemas() -> list[type]:
    """The schema of every recipe and of every evaluation."""
    recipes = [load(name) for name in RECIPES]
    return [each.Config for each in recipes] + [load_object(each.Evaluation) for each in recipes if each.Evaluation]


def has_number(kind: Any) -> bool:
    return bare(kind) in (int, float) or any(has_number(part) for part in get_args(bare(kind)))


def test_every_number_declares_its_range() -> None:
    classes = [*settings_classes(), *schemas()]
    assert len(classes) > 40, "the search finds the settings of the package"
    missing = [
        f"{schema.__module__}.{schema.__name__}.{field.name}"
        for schema in classes
        if dataclasses.is_dataclass(schema)
        for field in dataclasses.fields(schema)
        if has_number(kinds_of(schema)[field.name]) and range_of(kinds_of(schema)[field.name]) is None
    ]
    assert not missing, "\n".join(missing)


def test_every_default_is_allowed() -> None:
    for schema in schemas():
        for path, field in fields_of(schema).items():
            assert not refusal(field.kind, field.default), path


REFUSED = {
    "snakes": """
        ddpg.epsilon=7 ppo.entropy_coef=-8 gae_lambda=3 ppo.lr=inf eval_games=-3 eval_games=3 on_policy.num_envs=1e30
        off_policy.global_batch_size=1e30 nproc=1_000 ppo.hidden= ppo.hidden=64,0 ppo.clip=0 mirrored=1.01
        on_policy.gamma=1.5 on_policy.epochs=0 ppo.max_grad_norm=0 ddpg.epsilon_decay=0 ddpg.tau=0 time_limit_s=inf
        log_interval_s=-1 keep_checkpoints=0 threads=-1 env_steps=9223372036854775808 seed=-1 num_gpus=1000000000
        nnodes=٢ gpus=０
    """,
    "gym": """
        sac.hidden= sac.tau=1.5 sac.tau=-0.1 sac.gamma=-0.5 sac.initial_alpha=0 sac.actor_lr=0 sac.critic_lr=-1e-3
        sac.policy_interval=0 sac.obs_scale=nan off_policy.replay_size=0 off_policy.global_batch_size=0
        off_policy.n_step=0 learning_starts=-1 anneal_from=2 fast_td3.gamma=1 fast_td3.atoms=1 fast_td3.min_noise=-0.1
        dqn.epsilon_end=1.5 dqn.huber_delta=0 dqn.quantiles=-1 wrap.sticky_actions=1 wrap.frame_stack=0 num_workers=-2
        worker_deadline_s=0 eval_episodes=0 eval_episodes=-3 ppo.log_std=1000 ppo.target_kl=0
        td3.exploration_noise=inf ppo.lr=１e-3
    """,
    "uav": """
        n_agents=0 n_agents=17 failure_rate=-0.1 comm_range_m=-1 altitudes_m= altitudes_m=5,,15
        sensor_noise=0.5,0.5,0.5 coma.epsilon_start=2 batches=0 map_cells=10 coma.width=0 coma.entropy_coef=-1
    """,
    "metaworld": """
        mask_ratio=1.1 represent.net.dropout=1 represent.net.length=1 represent.net.heads=0 horizon=0 distill.hidden=
        represent.temperature=0 student.bonus=-1 online_steps=0
    """,
    "sketchnav": """
        demo_noise=1 pixels=15 scenes.min_size_m=7 rules.success_m=0 sensors.shading=-1 chunks.ema=1 chunks.unet=
        net.channels=0 scene_seed=-2 ppo.expert_coef=-1 chunks.noise_steps=0 net.crop_px=35
    """,
    "libero": """
        rdt.betas=0.9,1 rdt.betas=0.9 rdt.eps=0 rdt.drop_condition=1.5 net.patch=8 net.subsample=3 updates=0
        demo_noise=-1 rdt.ema_max=1 rdt.lr=0 frames=0 rdt.state_snr_db=nan
    """,
}

ACCEPTED = {
    "snakes": """
        ddpg.epsilon=0 ddpg.tau=1 gae_lambda=0 gae_lambda=1 on_policy.gamma=1 ppo.hidden=1 ppo.entropy_coef=0
        ppo.lr=1e-12 seed=9223372036854775807 env_steps=1e12 ppo.hidden=(512,) threads=0
    """,
    "gym": """
        sac.gamma=0 sac.tau=1 sac.target_entropy=-1e3 dqn.hidden= dqn.max_grad_norm=None sac.actor_lr=+3.E-4
        ppo.log_std=-5 sac.hidden=[2048,2048,2048] num_workers=-1 off_policy.replay_size=1e9 ppo.entropy_coef=1
        anneal_from=0 off_policy.clip_reward=.5 learning_starts=0 fast_td3.weight_decay=0.1
    """,
    "uav": """
        failure_rate=1 comm_range_m=0 coma.epsilon_start=1 on_policy.gae_lambda=0
    """,
    "metaworld": """
        mask_ratio=0 distill.critic_updates=0
    """,
    "sketchnav": """
        ppo.gru=0 scene_seed=-1 chunks.ema=0
    """,
    "libero": """
        rdt.state_snr_db=inf rdt.drop_condition=1 rdt.betas=0,0
    """,
}


def rows(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(recipe, option) for recipe, options in table.items() for option in options.split()]


@pytest.mark.parametrize("row", rows(REFUSED), ids=" ".join)
def test_refused(row: tuple[str, str]) -> None:
    option = row[1].partition("=")[0]
    with pytest.raises(ConfigError) as caught:
        configure(row[0], [row[1]])
    message = str(caught.value)
    assert option in message and "Write " in message and len(message) < 600, message


@pytest.mark.parametrize("row", rows(ACCEPTED), ids=" ".join)
def test_unusual_values_stay_accepted(row: tuple[str, str]) -> None:
    configure(row[0], [row[1]])


def test_the_tables_are_long_enough() -> None:
    assert len(rows(REFUSED)) >= 40 and len(rows(ACCEPTED)) >= 20


# -- run names ----------------------------------------------------------------------------------------------------

RUNS = [
    "y" * 100_000,
    "a\0b",
    ".",
    "/etc/passwd",
    "~nobody_here/x",
    "",
    "a" * 300,
    "/" * 5000,
    "a/" * 2000,
    "x\ny",
    "\ud800",
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: ascii(run)[:20])
@pytest.mark.parametrize("command", ["train", "eval", "watch", "report"])
def test_a_run_that_does_not_exist_is_one_clear_line(
    command: str, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if command == "train" and not run:
        pytest.skip("an empty resume starts a new run")
    arguments = ["show", "snakes", f"resume={run}"] if command == "train" else [command, run]
    assert command_line.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and len(message) < 600, message


def test_a_damaged_run_is_one_clear_line(tmp_path: Path) -> None:
    for config, run in (("{", "{}"), ("[" * 100_000, "{}"), ("\xff", "{}"), ("{}", "["), ("{}", "{}"), ("{}", "[1]")):
        (tmp_path / "config.json").write_text(config, encoding="latin-1")
        (tmp_path / "run.json").write_text(run)
        with pytest.raises(ConfigError) as caught:
            configure("snakes", [f"resume={tmp_path}"])
        assert len(str(caught.value)) < 600


# -- help ---------------------------------------------------------------------------------------------------------


def test_help_and_show_print_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ppo.lr=0.001  (a number, above 0 to 10)" in fields_table(load("snakes").Config)
    assert command_line.main(["show", "snakes", "gae_lambda=0.5"]) == 0
    shown = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert re.search(r"0\.5 +0 to 1 +command line$", shown["on_policy.gae_lambda"])
    assert attrgetter("on_policy.gae_lambda")(configure("snakes", [])[2].config) == 0.95
