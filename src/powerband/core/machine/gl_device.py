"""What draws pictures: the device by the name that OpenGL gives it. No torch here: workers import this file."""

from __future__ import annotations

import os


def opengl_renderer() -> str:
    """The device of the OpenGL context that is current, such as "llvmpipe (LLVM 15.0.7, 256 bits)" or a GPU's name; the
    backend where the library does not say."""
    try:
        from OpenGL import GL

        name = GL.glGetString(GL.GL_RENDERER)
    except Exception:  # PyOpenGL has errors of its own for a context that is not there
        name = None
    return name.decode(errors="replace") if name else os.environ.get("MUJOCO_GL", "")
