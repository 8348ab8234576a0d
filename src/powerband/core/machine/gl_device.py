"""OpenGL device: finds the name of the renderer. Worker processes import this module, so it does not import torch."""

from __future__ import annotations

import os


def opengl_renderer() -> str:
    """Device of the current OpenGL context, such as "llvmpipe (LLVM 15.0.7, 256 bits)" or the name of a GPU.

    Returns the value of MUJOCO_GL, or "" if it is not set, for an unknown device.
    """
    try:
        from OpenGL import GL

        name = GL.glGetString(GL.GL_RENDERER)
    except Exception:  # PyOpenGL raises its own errors without a context
        name = None
    return name.decode(errors="replace") if name else os.environ.get("MUJOCO_GL", "")
