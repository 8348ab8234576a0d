"""A recipe in another package: it is listed from metadata, trained, resumed and evaluated by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import powerband
from contract.contract import check_env

ROOT = Path(powerband.__file__).parents[2]
EXAMPLE = ROOT / "examples" / "outside_recipe"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the example package, next to a package whose entry point is broken."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    source = tmp_path_factory.mktemp("source") / "outside_recipe"
    subprocess.run(["cp", "-r", str(EXAMPLE), str(source)], check=True)
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True)
    broken = folder / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[powerband.recipes]\nbroken = no_such_module:RECIPE\n")
    return folder


def command(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT / 'src'}"}
    words = [sys.executable, "-m", "powerband", *arguments]
    return subprocess.run(words, env=environment, cwd=cwd, capture_output=True, text=True)


def test_an_installed_recipe_is_listed_trained_and_evaluated(site: Path, tmp_path: Path) -> None:
    listed = command(site, tmp_path, "list")
    assert listed.returncode == 0 and "point-mass" in listed.stdout and "broken" in listed.stdout
    common = ["gpus=none", "threads=1", "tensorboard=false"]
    run = tmp_path / "run"
    done = command(site, tmp_path, "train", "point-mass", "env_steps=64000", *common, f"run_dir={run}")
    assert done.returncode == 0, done.stderr
    untrained = command(site, tmp_path, "train", "point-mass", "variant=smoke", "ppo.lr=1e-9", *common, "run_dir=base")
    assert untrained.returncode == 0, untrained.stderr
    trained, base = (
        json.loads(command(site, tmp_path, "eval", str(folder), "--json").stdout)[0]["success_95"]
        for folder in (run, "base")
    )
    assert trained[0] > base[1], "the intervals of the trained and the untrained policy do not overlap"


def test_a_broken_recipe_breaks_only_itself(site: Path, tmp_path: Path) -> None:
    done = command(site, tmp_path, "train", "broken")
    assert done.returncode == 2 and "no module no_such_module" in done.stderr and "Traceback" not in done.stderr


def test_a_run_folder_may_name_installed_recipes_only(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "run.json").write_text('{"recipe": "somebody.else"}')
    (folder / "config.json").write_text("{}")
    done = command(site, tmp_path, "eval", str(folder))
    assert done.returncode == 2 and "--trust" in done.stderr


def test_its_environment_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from powerband_point_mass.env import PointMassEnv

    check_env(
        lambda num_envs, seed, first_env: PointMassEnv(num_envs, 20, seed=seed, first_env=first_env),
        terminates=None,
        is_first_obs=lambda obs: torch.ones(len(obs), dtype=torch.bool),
    )
