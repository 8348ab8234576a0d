"""One action in robosuite's simulation: its numbers, bit for bit, with less computed twice. No torch here.

For each of the 25 simulation steps of an action, robosuite has MuJoCo compute everything three times from one state:
before the controller is asked, in the controller, and in the step. Where things are, what touches and how fast it moves
is the same each time; only the forces differ, because the solver begins where it has ended. So the former is computed
once here, and the forces as often as there.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def act(env: Any, action: np.ndarray) -> None:
    """Does what ``env.step(action)`` does to the simulation; nothing is observed.

    Args:
        env: robosuite's environment, whose observables are off.
        action: (7,) as the environment takes them.
    """
    import mujoco

    sim = env.sim
    model, data = sim.model._model, sim.data._data
    assert model.opt.integrator != mujoco.mjtIntegrator.mjINT_RK4, "a step of RK4 cannot be taken in halves"
    velocities = int(mujoco.mjtStage.mjSTAGE_VEL)
    sim.forward = lambda: mujoco.mj_forwardSkip(model, data, velocities, 0)  # what controllers call
    env.timestep += 1
    try:
        for step in range(int(env.control_timestep / env.model_timestep)):
            mujoco.mj_forward(model, data)
            env._pre_action(action, step == 0)
            mujoco.mj_step2(model, data)
    finally:
        del sim.forward
    env.cur_time += env.control_timestep
    env._post_action(action)
