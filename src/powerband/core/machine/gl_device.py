"""OpenGL device: finds the name of the renderer. Worker processes import this module, so it does not import torch."""

from __future__ import annotations

import os


def opengl_renderer() -> str:
    """Device that renders in the current OpenGL context, such as "llvmpipe (LLVM 15.0.7, 256 bits)" or a GPU's name.

    If the device is unknown, this is the value of MUJOCO_GL, or "" if that is not set.
    """
    try:
        from OpenGL import GL

        name = GL.glGetString(GL.GL_RENDERER)
    except Exception:  # PyOpenGL raises its own errors without a context
        name = None
    return name.decode(errors="replace") if name else os.environ.get("MUJOCO_GL", "")
