"""Hashed tokens: encodes instructions as tokens without a trained encoder, so that nothing must be downloaded.

A hash of a word seeds a fixed pseudo-random vector, which is the same on every machine and exists for any vocabulary.
A token is the sum of the vector of its word and of the vector of the word pair that ends with it: the order of words
matters, as in "put A on B".
Suffixes: K instructions, L tokens, D width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from powerband.core.errors import ConfigError
from powerband.core.noise import Noise

WIDTH = 128
SEED = 0
"""Seed of the vectors. Another seed invalidates all trained policies."""


def split_words(instruction: str) -> list[str]:
    """Returns the words of an instruction in lower case, without punctuation.

    Raises:
        ConfigError: The instruction has no word.
    """
    words = re.findall(r"[^\W_]+", instruction.lower())
    if not words:
        raise ConfigError(f"The instruction {instruction!r} has no word. Write the task, such as 'open the drawer'.")
    return words


def hash_vector(text: str) -> Tensor:
    """Returns a pseudo-random vector (D features,) float32 that is the same for the same text.

    Its norm is close to 1, and vectors of different texts are nearly orthogonal.
    """
    return Noise(SEED, f"words/{text}", torch.zeros(1, dtype=torch.int64)).normal(WIDTH)[0] / WIDTH**0.5


def hash_instructions(instructions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Encodes instructions with one token per word, from fixed pseudo-random vectors of words and word pairs.

    Args:
        instructions: K instructions, each with at least one word.

    Returns:
        Tokens (K, L tokens, D features) float32, 0 after an instruction's end, and their mask (K, L) bool, True for
        tokens.

    Raises:
        ConfigError: The list is empty, or an instruction has no word.
    """
    if not instructions:
        raise ConfigError("The demonstrations have no instruction. Record one instruction per task.")
    sentences = [split_words(instruction) for instruction in instructions]
    tokens = torch.zeros(len(sentences), max(map(len, sentences)), WIDTH)
    mask = torch.zeros(tokens.shape[:2], dtype=torch.bool)
    for number, words in enumerate(sentences):
        for index, (previous, word) in enumerate(zip(["", *words], words, strict=False)):
            # The factor makes the entries about 1, which the layers expect.
            tokens[number, index] = (hash_vector(word) + hash_vector(f"{previous} {word}")) * (WIDTH / 2) ** 0.5
            mask[number, index] = True
    return tokens, mask


def instruction_similarity(tokens: Tensor, mask: Tensor) -> Tensor:
    """Computes the cosine similarity of the mean tokens of instructions.

    Args:
        tokens: Tokens (K instructions, L tokens, D features) of any encoder.
        mask: Mask (K, L) bool, True for tokens and False for padding.

    Returns:
        Similarities (K, K) in -1..1; 1 on the diagonal, and for instructions that cannot be distinguished.
    """
    weight = mask.unsqueeze(-1).to(tokens.dtype)
    mean = (tokens * weight).sum(1) / weight.sum(1).clamp(min=1)
    unit = torch.nn.functional.normalize(mean.float(), dim=1)
    return (unit @ unit.T).clamp(-1, 1)
