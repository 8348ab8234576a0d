"""Choices: allowed values of network options. This file does not import torch, so that help texts load quickly."""

from __future__ import annotations

from typing import Literal

Activation = Literal["relu", "tanh", "silu", "elu"]
"""Activation function between hidden layers."""
ImageNet = Literal["auto", "nature", "impala", "small", "flat"]
"""Network for images: auto is nature for sides of 36 pixels or more and small for smaller ones; flat joins pixels."""
