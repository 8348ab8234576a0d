"""Configuration: every notation of a setting, sources, and saved configurations."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.config.toy_schema import Config, Ppo, Sac, read, refused
from powerband.core.config import RunConfig, from_json, presets, to_json
from powerband.core.config.schema import fields_of, fields_table
from powerband.core.errors import ConfigError
from powerband.core.run_folder import find_run

# -- notations ---------------------------------------------------------------------------------------------------

FORMS = [
    "loop.{n}={v}",
    "--loop.{n} {v}",
    "--loop.{n}={v}",
    "--{n} {v}",
    "--{n}={v}",
    "{n}={v}",
    "--{d} {v}",
    "--{d}={v}",
]


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(FORMS), st.integers(-(10**9), 10**9))
def test_forms_of_a_flag_are_equivalent(form: str, value: int) -> None:
    arguments = form.format(n="update_interval", d="update-interval", v=value).split(" ")
    assert read(*arguments).config.loop.update_interval == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("--tensorboard", True),
        ("run.tensorboard=yes", True),
        ("--no-tensorboard", False),
        ("--no_tensorboard", False),
        ("--no-run.tensorboard", False),
        ("tensorboard=off", False),
        ("--tensorboard False", False),
        ("--run.tensorboard=0", False),
    ],
)
def test_booleans(text: str, value: bool) -> None:
    assert read(*text.split()).config.run.tensorboard is value


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("--gpu-ids 0,2", "0,2"),
        ("--gpus 0 2", "0,2"),
        ("--num-gpus 3", "0,1,2"),
        ("num_gpus=0", "none"),
        ("--gpus=all", "all"),
        ("run.gpus=none", "none"),
    ],
)
def test_gpu_options(text: str, gpus: str) -> None:
    assert read(*text.split()).config.run.gpus == gpus


@pytest.mark.parametrize(
    "arguments", [["--hidden", "8", "16"], ["hidden=8,16"], ["sac.hidden=(8, 16)"], ["--hidden=[8,16]"]]
)
def test_lists(arguments: list[str]) -> None:
    assert read(*arguments).config.sac.hidden == (8, 16)


def test_numbers_and_none() -> None:
    assert read("env_steps=1e6").config.run.env_steps == 1_000_000
    assert isinstance(read("env_steps=2e6").config.run.env_steps, int)
    assert read("--target-entropy", "-3.5").config.sac.target_entropy == -3.5
    assert read("target_entropy=None").config.sac.target_entropy is None
    assert read("note=--strange").config.note == "--strange"


def test_an_unqualified_name_means_the_section_of_the_algorithm() -> None:
    assert read("lr=1e-5").config.sac.lr == 1e-5
    assert read("lr=1e-5", "algo=ppo").config.ppo.lr == 1e-5
    assert read("num_envs=3", "algo=ppo").config.rollouts.num_envs == 3
    assert read("num_envs=3").config.loop.num_envs == 3
    assert "ppo.lr" in refused("lr=1e-5", "algo=both") and "sac.lr" in refused("lr=1e-5", "algo=both")


def test_a_setting_of_another_algorithm_is_a_notice() -> None:
    assert "no effect with algo=sac" in read("ppo.lr=1").notices[0]
    assert not read("sac.lr=1").notices


# -- sources ------------------------------------------------------------------------------------------------------


def test_later_sources_win_and_each_value_knows_its_source(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("sac:\n  lr: 1e-4\nupdate_interval: 7\nrun: {lr_scale: none, gpus: [0, 1], tensorboard: no}\n")
    resolved = read("variant=demo", "--config", str(path), "update-interval=9")
    config = resolved.config
    assert (config.sac.lr, config.loop.num_envs, config.loop.update_interval) == (1e-4, 32, 9)
    assert (config.run.lr_scale, config.run.gpus, config.run.tensorboard) == ("none", "0,1", False)
    assert resolved.sources["sac.lr"] == f"{path}:2"
    assert resolved.sources["loop.num_envs"] == "variant demo"
    assert resolved.sources["loop.update_interval"] == "command line"
    assert resolved.sources["run.seed"] == "default" and resolved.variant == "demo"
    assert config.run.env_steps == 1000, "the recipe's own default of a section"
    mapped = read("variant=mapped").config
    assert (mapped.loop.num_envs, mapped.sac.hidden) == (64, (8, 8))


def test_presets_of_the_user_replace_presets_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, user = tmp_path / "package", tmp_path / "home" / "powerband" / "setup"
    for folder, threads in ((package, 1), (user, 2)):
        folder.mkdir(parents=True)
        (folder / "box.yaml").write_text(f"run.threads: {threads}\n")
    (package / "cpu.yaml").write_text("run: {gpus: none}\n")
    monkeypatch.setattr(presets, "PRESETS", package)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    assert read("setup=box").config.run.threads == 2
    assert read("--setup", "cpu").config.run.gpus == "none"
    assert "Did you mean 'box'" in refused("setup=boxx")
    assert "unknown preset" in refused("setup=../../box")


def test_old_names_are_accepted_with_a_notice_or_refused_with_the_new_name() -> None:
    resolved = read("--batch_size", "512", "old.interval=10")
    assert (resolved.config.loop.global_batch_size, resolved.config.loop.update_interval) == (512, 10)
    assert "is read as loop.global_batch_size; the guide's was per rank" in resolved.notices[0]
    assert len(resolved.notices) == 2
    assert "run.env_steps=episodes x 200" in refused("--max-episodes", "10")


def test_resume_continues_with_the_saved_settings(tmp_path: Path) -> None:
    root, tmp_path = tmp_path, tmp_path / "one"
    tmp_path.mkdir()
    config = read("variant=demo", "seed=5", f"run_dir={tmp_path}").config
    (tmp_path / "config.json").write_text(to_json(config))
    (tmp_path / "run.json").write_text("{}")
    file = tmp_path / "checkpoints" / "100" / "manifest.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    for target in (tmp_path, file.parent, file):
        assert find_run(str(target)) == tmp_path
    resolved = read("variant=mapped", f"resume={file}", "env_steps=5000")
    assert (resolved.config.run.seed, resolved.config.loop.num_envs, resolved.config.run.env_steps) == (5, 32, 5000)
    assert resolved.config.run.run_dir == "" and "no effect with resume" in resolved.notices[0]
    assert find_run("last", root) == tmp_path
    assert "does not exist" in refused("resume=nowhere")
    with pytest.raises(ConfigError, match="contains no run"):
        find_run("last", tmp_path)


def test_resume_last_names_the_same_run_when_another_one_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = tmp_path / "runs" / "a", tmp_path / "runs" / "b"
    for folder in (first, second):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(to_json(read("seed=5").config))
    (first / "run.json").write_text("{}")
    resolved = read("resume=last")
    (second / "run.json").write_text("{}")
    os.utime(first / "run.json", (0, 0))
    assert find_run("last") == Path("runs/b") and find_run(resolved.config.run.resume) == first


def test_resume_in_a_file_is_not_followed(tmp_path: Path) -> None:
    """The config.json of a run that was resumed names this run; a new run with its settings must not continue it."""
    file = tmp_path / "config.json"
    file.write_text(to_json(read("seed=5", "note=own").config).replace('"resume": ""', '"resume": "runs/old"'))
    assert "runs/old" in file.read_text()
    resolved = read("--config", str(file), "seed=7")
    assert (resolved.config.run.resume, resolved.config.run.seed, resolved.config.note) == ("", 7, "own")
    assert "no effect in a file. To continue a run, write resume= on the command line" in resolved.notices[0]


# -- saved configurations -----------------------------------------------------------------------------------------

floats = st.floats(allow_nan=False, min_value=1e-300)
seeds, seconds = st.integers(0, 2**63 - 1), st.floats(0, 1e9)
paths = st.text("ab./é ", max_size=40)
characters = st.characters(codec="utf-8", exclude_categories=("Cs",), exclude_characters="\0")  # NUL is refused
texts = st.text(characters).filter(lambda text: text != "None")


@settings(deadline=None, max_examples=30)
@given(
    st.builds(
        Config,
        algo=st.sampled_from(["sac", "ppo"]),
        note=st.none() | texts,
        run=st.builds(
            RunConfig, seed=st.integers(0, 2**63 - 1), tensorboard=st.booleans(), run_dir=paths, time_limit_s=seconds
        ),
        sac=st.builds(Sac, lr=floats, hidden=st.lists(st.integers()).map(tuple), target_entropy=st.none() | floats),
        ppo=st.builds(Ppo, clip_range=st.tuples(floats, floats)),
    )
)
def test_json_round_trip(config: Config) -> None:
    assert from_json(Config, to_json(config)) == config


def test_json_is_read_as_strictly_as_flags() -> None:
    assert from_json(Config, '{"sac": {"lr": 1e-05}}').sac.lr == 1e-5
    for text in ('{"sac": {"lrr": 1}}', '{"sac": {"lr": "x"}}', "[]", "{"):
        with pytest.raises(ConfigError):
            from_json(Config, text)


def test_every_field_has_help() -> None:
    fields = fields_of(Config)
    assert all(field.help for field in fields.values())
    assert "run.update_interval" not in fields and fields["loop.update_interval"].help == "Transitions between updates."
    assert "loop.update_interval=1  (an integer)" in fields_table(Config)
