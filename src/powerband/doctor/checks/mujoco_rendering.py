"""MuJoCo rendering: renders frames with one backend and reports the OpenGL renderer. Runs in a subprocess."""

from __future__ import annotations

import time
from typing import Any

SIZE = 128
BUDGET_S = 1.0
SCENE = """<mujoco><visual><global offwidth="128" offheight="128"/></visual><asset>
<texture name="checks" type="2d" builtin="checker" width="64" height="64" rgb1=".2 .3 .4" rgb2=".6 .7 .8"/>
<material name="floor" texture="checks" texrepeat="4 4"/></asset><worldbody><light pos="1 1 3"/>
<geom type="plane" size="2 2 .1" material="floor"/><body pos="0 0 .5"><joint type="hinge" axis="0 1 0"/>
<geom type="capsule" size=".1" fromto="0 0 0 .6 0 0" rgba="1 .3 .2 1"/></body>
<camera name="view" pos="0 -2 1.2" xyaxes="1 0 0 0 .5 1"/></worldbody></mujoco>"""
"""A lit arm over a floor, similar to a manipulation task without its meshes."""


def render() -> dict[str, Any]:
    """Renders frames of 128 x 128 pixels for about one second with the backend that MUJOCO_GL names.

    Returns:
        {"vendor", "renderer", "version": strings of OpenGL, "frames_per_s": frames per second with all effects,
        "plain_frames_per_s": without shadows, reflections and multisampling, "start_s": seconds until the first frame,
        "blank": whether all pixels of a frame are equal}.
    """
    started = time.perf_counter()
    import mujoco

    model = mujoco.MjModel.from_xml_string(SCENE)
    full = _rate(model, plain=False, started=started)
    model.vis.quality.offsamples = 0
    plain = _rate(model, plain=True, started=started)
    blank = full["blank"] or plain["blank"]
    return {**full, "plain_frames_per_s": plain["frames_per_s"], "blank": blank}


def _rate(model: Any, plain: bool, started: float) -> dict[str, Any]:
    import mujoco
    from OpenGL import GL

    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = mujoco.Renderer(model, SIZE, SIZE)
    try:
        if plain:
            for flag in ("mjRND_SHADOW", "mjRND_REFLECTION", "mjRND_SKYBOX"):
                renderer.scene.flags[getattr(mujoco.mjtRndFlag, flag)] = 0
        frame = _frame(renderer, data)
        start_s = time.perf_counter() - started
        strings = {name: _text(GL.glGetString(code)) for name, code in _names(GL).items()}
        count, first_frame = 0, time.perf_counter()
        while count < 3 or time.perf_counter() - first_frame < BUDGET_S / 2:
            frame = _frame(renderer, data)
            count += 1
        rate = count / (time.perf_counter() - first_frame)
    finally:
        renderer.close()  # an open renderer prints `<exception str() failed>` when the interpreter exits
    return {**strings, "frames_per_s": rate, "start_s": start_s, "blank": bool((frame == frame[0, 0]).all())}


def _frame(renderer: Any, data: Any) -> Any:
    renderer.update_scene(data, camera="view")
    return renderer.render()


def _names(gl: Any) -> dict[str, Any]:
    return {"vendor": gl.GL_VENDOR, "renderer": gl.GL_RENDERER, "version": gl.GL_VERSION}


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")
