"""Words: instructions as tokens without a trained encoder, so that nothing has to be downloaded.

A word is a fixed pseudo-random vector that a hash of it gives, so any vocabulary has one, the same on every machine.
Half of a token is the word's own, half that of the word with the one before it: what is put on what can be told apart.
Suffixes: K instructions, L tokens, D width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from powerband.core.flags import ConfigError
from powerband.core.noise import Noise

WIDTH = 128
SEED = 0
"""Part of what makes a vector: another one makes policies that were trained before useless."""


def words_of(instruction: str) -> list[str]:
    """Its words in lower case, without marks.

    Raises:
        ConfigError: There is none.
    """
    words = re.findall(r"[^\W_]+", instruction.lower())
    if not words:
        raise ConfigError(f"the instruction {instruction!r} has no word. Write what is to be done, such as 'open it'.")
    return words


def vector_of(text: str) -> Tensor:
    """(D,) float32, of length 1 nearly; vectors of different texts stand nearly at right angles."""
    return Noise(SEED, f"words/{text}", torch.zeros(1, dtype=torch.int64)).normal(WIDTH)[0] / WIDTH**0.5


def encode_words(instructions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """
    Args:
        instructions: One or more, each with a word.

    Returns:
        Tokens (K, L, D) float32, zero behind an instruction's end; which are there, (K, L) bool.

    Raises:
        ConfigError: No instruction, or one without a word.
    """
    if not instructions:
        raise ConfigError("there is no instruction. Give one for each task.")
    split = [words_of(instruction) for instruction in instructions]
    tokens = torch.zeros(len(split), max(map(len, split)), WIDTH)
    there = torch.zeros(tokens.shape[:2], dtype=torch.bool)
    for number, words in enumerate(split):
        for place, (before, word) in enumerate(zip(["", *words], words, strict=False)):
            # Times the root of the width: numbers of about 1, as layers expect them.
            tokens[number, place] = (vector_of(word) + vector_of(f"{before} {word}")) * (WIDTH / 2) ** 0.5
            there[number, place] = True
    return tokens, there


def likeness(tokens: Tensor, there: Tensor) -> Tensor:
    """How alike instructions are: cosines of their mean tokens.

    Args:
        tokens: (K, L, D), of any encoder.
        there: (K, L) bool.

    Returns:
        (K, K) in -1..1; 1 on the diagonal, and wherever two instructions cannot be told apart.
    """
    weight = there.unsqueeze(-1).to(tokens.dtype)
    mean = (tokens * weight).sum(1) / weight.sum(1).clamp(min=1)
    unit = torch.nn.functional.normalize(mean.float(), dim=1)
    return (unit @ unit.T).clamp(-1, 1)
