"""What a step of RDT costs with features that a frozen vision encoder made before, and with making them in every step.

    python benchmarks/rdt_features.py [--rounds 5] [--steps 4] [--json benchmarks/results/rdt_features.json]

Both learn from the same rows with the same seed, and end at the same loss up to the rounding of the cache, which is
bf16 as the recipe's is. The encoder is a vision transformer with random weights: of SigLIP-so400m-384's size on CUDA,
beside rdt-170m and rdt-1b; on a CPU, beside rdt-tiny, 6 layers of 384 on 64 patches of 128 x 128 pixels. With
`--ledger` (CUDA alone) each model's step is taken apart: parts in ms, samples/s, share of the device's peak, and memory
with and without checkpoints of activations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from powerband.core.machine.device import host_facts
from powerband.core.noise import NoiseSource
from powerband.core.optim.precision import Precision, peak
from powerband.core.rank_context import RankContext
from powerband.core.ranks.ranks import Ranks
from powerband.recipes.libero.nets.hashed_tokens import WIDTH, hash_instructions
from powerband.recipes.libero.nets.rdt import SIZES, RDTShape
from powerband.recipes.libero.nets.rdt_policy import RDTPolicy
from powerband.recipes.libero.rdt import RDTConfig, RDTLearner
from powerband.tune.measure.flops import count_flops

ASKED, REPEATS = 1.8, 10
RECORDED = 64
"""Rows of made-up recordings; batches are drawn from them."""
FRAMES, CAMERAS, VECTOR = 2, 2, 128
ACTION_NUMBERS = 10
LR = 1e-3
"""Large, so that what is seen soon matters for the loss that is compared."""


@dataclass(frozen=True)
class VisionSize:
    pixels: int
    patch: int
    width: int
    depth: int
    heads: int
    feedforward: int


VISION = {
    "cpu": VisionSize(128, 16, 384, 6, 6, 1536),
    "cuda": VisionSize(384, 14, 1152, 27, 16, 4304),  # SigLIP-so400m-patch14-384
}
MODELS = {"cpu": ("rdt-tiny",), "cuda": ("rdt-170m", "rdt-1b")}
ROWS = {"cpu": 16, "cuda": 32}


class RandomVision(nn.Module):
    """A vision transformer as SigLIP's is built, with random weights."""

    def __init__(self, size: VisionSize) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, size.width, size.patch, size.patch)
        self.tokens = (size.pixels // size.patch) ** 2
        self.place = nn.Parameter(0.02 * torch.randn(self.tokens, size.width))
        words = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(size.width, size.heads, size.feedforward, **words)
        self.layers = nn.TransformerEncoder(layer, size.depth, nn.LayerNorm(size.width), enable_nested_tensor=False)

    @torch.no_grad()
    def forward(self, pictures: Tensor) -> Tensor:
        """(n, H, W, 3) uint8 -> (n, P, D)."""
        seen = pictures.permute(0, 3, 1, 2).to(self.place.dtype) / 127.5 - 1
        return self.layers(self.embed(seen).flatten(2).transpose(1, 2) + self.place)


class Case:
    """A model with its recorded rows, once with features and once with pictures."""

    def __init__(self, model: str, device: torch.device, precision: str, rows: int) -> None:
        self.model, self.device, self.rows, self.size = model, device, rows, VISION[device.type]
        self.precision = Precision(precision, device)
        torch.manual_seed(0)
        self.vision = RandomVision(self.size).eval().requires_grad_(False).to(device)
        if device.type == "cuda":
            self.vision = self.vision.bfloat16()
        draw = torch.Generator().manual_seed(0)
        coarse = torch.randint(256, (RECORDED, FRAMES, CAMERAS, 8, 8, 3), dtype=torch.uint8, generator=draw).to(device)
        side = -(-self.size.pixels // 8)
        fine = coarse.repeat_interleave(side, 3).repeat_interleave(side, 4)
        self.pictures = fine[:, :, :, : self.size.pixels, : self.size.pixels].contiguous()
        self.features = torch.stack([self.encoded(row.unsqueeze(0))[0] for row in self.pictures]).bfloat16()
        self.state = torch.randn(RECORDED, VECTOR, generator=draw).to(device)
        self.action = torch.randn(RECORDED, 64, VECTOR, generator=draw).to(device)

    def encoded(self, pictures: Tensor) -> Tensor:
        """(R, F, C, H, W, 3) -> (R, F, C, P, D)."""
        return self.vision(pictures.flatten(0, 2)).unflatten(0, pictures.shape[:3])

    def learner(self, **words: Any) -> RDTLearner:
        """The same one each time."""
        torch.manual_seed(1)
        shape = RDTShape(cameras=CAMERAS, patches=self.vision.tokens, patch_width=self.size.width, language_width=WIDTH)
        with self.device:
            policy = RDTPolicy(SIZES[self.model], shape)
        policy.set_instructions(*hash_instructions(["open the drawer", "close the drawer"]))
        ranks, noise = Ranks(device=self.device), NoiseSource(0, self.device)
        return RDTLearner(
            RDTConfig(lr=LR, lr_warmup_updates=0, **words), policy, RankContext(ranks, self.precision, noise)
        )

    def batch(self, number: int, cached: bool, rows: int = 0) -> dict[str, Any]:
        """Batch `number`: with the features of its pictures from the cache, or made now."""
        rows = rows or self.rows
        index = ((torch.arange(rows) + number * rows) % RECORDED).to(self.device)
        there = (torch.arange(VECTOR, device=self.device) < ACTION_NUMBERS).expand(rows, -1)
        obs = {
            "features": self.features[index] if cached else self.encoded(self.pictures[index]),
            "image_mask": torch.ones(rows, FRAMES, CAMERAS, dtype=torch.bool, device=self.device),
            "state": self.state[index],
            "state_there": there,
            "task": index % 2,
            "hz": torch.full((rows,), 20.0, device=self.device),
        }
        valid = torch.ones(rows, 64, dtype=torch.bool, device=self.device)
        return {"obs": obs, "action": self.action[index], "action_there": there, "valid": valid}

    def seconds(self, call: Callable[[], object]) -> float:
        """Of one call, the device's work included."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start


def compared(case: Case, rounds: int, steps: int) -> dict[str, Any]:
    """Both ways in turn: `steps` updates of one, `steps` of the other, and again."""
    ways = {"cached": case.learner(), "encoded": case.learner()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + rounds):  # the first warms up
        for name, learner in ways.items():
            for number in range(turn * steps, (turn + 1) * steps):
                figures: dict[str, Tensor] = {}

                def once(learner=learner, name=name, number=number, into=figures) -> None:
                    into.update(learner.update(case.batch(number, name == "cached")))

                taken[name].append(case.seconds(once))
                losses[name].append(float(figures["losses/rdt"]))
        now = {name: 1e3 * statistics.median(of[-steps:]) for name, of in taken.items()}
        print(f"round {turn} of {rounds}  {case.model}  " + "  ".join(f"{k} {v:.1f} ms" for k, v in now.items()))
    taken = {name: of[steps:] for name, of in taken.items()}
    off = max(abs(a - b) / b for a, b in zip(losses["cached"], losses["encoded"], strict=True))
    row = {"model": case.model, "rows": case.rows, "precision": case.precision.name, "vision": vars(case.size)}
    row |= {f"{name}_ms": 1e3 * statistics.median(of) for name, of in taken.items()}
    row |= {f"{name}_samples_per_s": 1e3 * case.rows / row[f"{name}_ms"] for name in ways}
    row |= {"gain": row["encoded_ms"] / row["cached_ms"], "loss_differs": off, "losses": losses}
    row["ms"] = taken
    print(
        f"{case.model}: encoded {row['encoded_ms']:.1f} ms, cached {row['cached_ms']:.1f} ms: {row['gain']:.2f} x, "
        f"{ASKED} x is asked; losses differ by {off:.1e} of themselves at most"
    )
    return row


def step_ledger(case: Case) -> dict[str, Any]:
    """Where a step goes, on CUDA: parts in ms, samples/s, share of the peak, memory."""
    ledger = {"model": case.model, "rows": case.rows, **parts_of(case)}
    ledger |= memory_of(case, "") | memory_of(case, "checkpointed_", gradient_checkpointing=True)
    print(json.dumps(ledger, indent=1), flush=True)
    return ledger


def parts_of(case: Case) -> dict[str, float]:
    """Parts of a step in ms, and what they make of the device."""
    learner, batch = case.learner(), case.batch(0, True)
    for _ in range(3):
        learner.update(batch)
    noisy = torch.randn_like(batch["action"])
    step = torch.zeros(case.rows, dtype=torch.int64, device=case.device)
    pictures = case.pictures[: case.rows]

    def forward() -> Tensor:
        with case.precision.autocast():
            return learner.policy(batch["obs"], noisy, batch["action_there"], step)

    def backward() -> None:
        forward().square().mean().backward()
        learner.policy.zero_grad()

    ms = {"encode_ms": median_ms(case, lambda: case.encoded(pictures))}
    with torch.no_grad():
        ms["forward_ms"] = median_ms(case, forward)
    ms["forward_backward_ms"] = median_ms(case, backward)
    ms["update_ms"] = median_ms(case, lambda: learner.update(batch))
    ms["optimiser_average_and_draws_ms"] = ms["update_ms"] - ms["forward_backward_ms"]
    flops, able = count_flops(lambda: learner.update(batch)), peak(case.device, case.precision.name)
    return ms | {
        "flops": flops,
        "peak_flops": able,
        "mfu": flops / (ms["update_ms"] / 1e3) / able,
        "samples_per_s_cached": 1e3 * case.rows / ms["update_ms"],
        "samples_per_s_encoded": 1e3 * case.rows / (ms["update_ms"] + ms["encode_ms"]),
    }


def memory_of(case: Case, name: str, **words: Any) -> dict[str, float]:
    """Memory and time of a step of a learner that is built with `words`."""
    torch.cuda.empty_cache()
    learner, batch = case.learner(**words), case.batch(0, True)
    learner.update(batch)  # from here on the moments are held too
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ms = median_ms(case, lambda: learner.update(batch))
    most = torch.cuda.max_memory_allocated()
    return {f"{name}step_ms": ms, f"{name}memory_gib": most / 2**30, f"{name}activations_gib": (most - held) / 2**30}


def median_ms(case: Case, call: Callable[[], object]) -> float:
    return 1e3 * statistics.median(case.seconds(call) for _ in range(REPEATS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=SIZES)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--precision", choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ledger", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, found = device.type, {"host": host_facts(), "threads": torch.get_num_threads(), "asked": ASKED}
    found |= {"rows": [], "ledgers": []}
    for model in given.models or MODELS[kind]:
        precision = given.precision or ("bf16" if kind == "cuda" else "fp32")
        case = Case(model, device, precision, given.rows or ROWS[kind])
        found["rows"].append(compared(case, given.rounds, given.steps))
        if given.ledger and kind == "cuda":
            found["ledgers"].append(step_ledger(case))
    if given.ledger and kind != "cuda":
        print("the ledger needs a CUDA device: left out")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
