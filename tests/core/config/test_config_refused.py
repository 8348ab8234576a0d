"""Strict configuration: every mistake in a setting, and its message."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.config.toy_schema import Config, read, refused

# -- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["updat_interval=3"], ["updat_interval", "command line", "loop.update_interval"]),
        (["loop.batch=3"], ["loop.batch"]),
        (["sac.update_interval=3"], ["loop.update_interval"]),
        (["zzzzz=3"], ["toy --help"]),
        (["batchsize=3"], ["batch_size"]),
        (["loop=3"], ["section", "loop.update_interval"]),
        (["lr=fast"], ["lr=fast", "command line", "a number", "lr=0.0003"]),
        (["lr=nan"], ["nan"]),
        (["seed=1.5"], ["an integer", "seed=0"]),
        (["env_steps=1e-3"], ["an integer"]),
        (["seed="], ["an integer"]),
        (["--seed"], ["value is missing"]),
        (["--run-dir"], ["value is missing", "text"]),
        (["--seed", "1", "2"], ["2 values"]),
        (["tensorboard=maybe"], ["true or false"]),
        (["--no-seed"], ["no_seed"]),
        (["algo=dqn"], ["one of sac, ppo, both"]),
        (["clip_range=1"], ["2 values"]),
        (["hidden=8,x"], ["a list, each an integer"]),
        (["lr=1", "sac.lr=2"], ["sac.lr was given already"]),
        (["gpus=0", "--num-gpus", "2"], ["run.gpus was given already"]),
        (["variant=demo", "--variant", "demo"], ["variant was given already"]),
        (["variant=dmo"], ["Did you mean 'demo'", "demo, mapped"]),
        (["stray"], ["has no value", "stray=VALUE"]),
        (["--"], ["names no option"]),
        (["-x=1"], ["names no option"]),
        (["num_gpus=-1"], ["below 0"]),
        (["gpus=first"], ["gpus=first", "gpus=0,2", "command line"]),
        (["nproc=0"], ["nproc=0", "below 1"]),
        (["nnodes=4:2"], ["nnodes=4:2"]),
        (["stall_s=0.5"], ["stall_s=0.5", "below 1", "stall_s=0 "]),
        (["sac.lr=-1"], ["lr=-1.0", "Write lr=3e-4", "sac.lr: command line"]),
    ],
)
def test_refused(arguments: list[str], parts: list[str]) -> None:
    message = refused(*arguments)
    assert all(part in message for part in parts), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("seed: 1\nseed: 2\n", [":2", "line 1"]),
        ("run:\n  seed: 1\nrun.seed: 2\n", [":3", "given already", ":2"]),
        ("sac: {lr: 1}\nlr: 2\n", ["given already"]),
        ("a: &x 1\nseed: *x\n", [":2", "alias"]),
        ("a: &x [*x]\n", ["alias"]),
        ("seed: !!python/object/apply:os.system ['true']\n", [":1", "tags"]),
        ("seed: !mine 3\n", [":1", "tags"]),
        ("!!python/name:os.system x: 1\n", ["name"]),
        ("? [1, 2]\n: 3\n", ["a key must be a name"]),
        ("- seed\n", ["not a mapping"]),
        ("seed\n", ["not a mapping"]),
        ("seed: [1\n", ["not valid YAML"]),
        ("seed: 1\n---\nseed: 2\n", ["not valid YAML"]),
        ("seed:\n  - [1]\n", ["flat list"]),
        ("seed: [1, 2]\n", ["2 values"]),
        ("run_dir:\n", ["expected text, not null"]),
        ("\n\nsead: 1\n", [":3", "run.seed"]),
        ("lr: fast\n", [":1", "a number"]),
        ("variant: demo\n", ["command line"]),
    ],
)
def test_refused_yaml(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    message = refused(f"config={path}")
    assert all(part in message for part in parts), message
    assert str(path) in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read" in refused(f"config={tmp_path / 'none.yaml'}")
    assert "cannot be read" in refused(f"config={tmp_path}")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert "bytes.yaml" in refused(f"config={tmp_path / 'bytes.yaml'}")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read(f"config={tmp_path / 'empty.yaml'}").config == Config()
