"""Choices of network options, by name. This file does not import torch, so that help texts can list them quickly."""

from __future__ import annotations

from typing import Literal

Activation = Literal["relu", "tanh", "silu", "elu"]
"""Activation function between hidden layers."""
