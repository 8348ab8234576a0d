"""RDT update rate with cached encoder features, compared with encoding in every update.

    python benchmarks/updates/rdt_features.py [--rounds 5] [--steps 4] [
        --json benchmarks/results/updates/rdt_features.json]

Both learners train on the same rows with the same seed. Their losses agree up to the rounding of the cache, which
stores bf16 as in the recipe. The encoder is a vision transformer with random weights. On CUDA it has the size of
SigLIP-so400m-384 and encodes for rdt-170m and rdt-1b. On a CPU it has 6 layers of width 384, encodes images of
128 x 128 pixels as 64 patches, and is used with rdt-tiny.

On CUDA the blocks of the policy are compiled (`rdt.compile=true`), unless `--eager` is given.

With `--ledger`, the script first measures the parts of an update in ms, samples/s and MFU, and on CUDA the time and
memory of an update without compilation, and with gradient checkpointing. The ledger needs the memory of one learner,
the comparison that of two. The file is written after each of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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

TARGET_GAIN, REPEATS = 1.8, 10
RECORDED_ROWS = 64
"""Default number of rows of synthetic recordings; batches consist of them."""
FRAMES, CAMERAS, VECTOR_SIZE = 2, 2, 128
ACTION_SIZE = 10
LR = 1e-3
"""Large, so that the images influence the compared losses after few updates."""


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
    """Vision transformer with the architecture of SigLIP and random weights."""

    def __init__(self, size: VisionSize) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, size.width, size.patch, size.patch)
        self.tokens = (size.pixels // size.patch) ** 2
        self.position = nn.Parameter(0.02 * torch.randn(self.tokens, size.width))
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(size.width, size.heads, size.feedforward, **options)
        self.layers = nn.TransformerEncoder(layer, size.depth, nn.LayerNorm(size.width), enable_nested_tensor=False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Encodes images (n, H, W, 3) uint8 as features (n, P, D)."""
        scaled = images.permute(0, 3, 1, 2).to(self.position.dtype) / 127.5 - 1
        return self.layers(self.embed(scaled).flatten(2).transpose(1, 2) + self.position)


class Case:
    """One model with recorded rows, both as images and as cached features."""

    def __init__(
        self, model: str, device: torch.device, precision: str, rows: int, recorded: int, repeats: int, compile: bool
    ) -> None:
        self.model, self.device, self.rows, self.size = model, device, rows, VISION[device.type]
        self.compile = compile
        self.repeats = repeats
        self.precision = Precision(precision, device)
        torch.manual_seed(0)
        self.vision = RandomVision(self.size).eval().requires_grad_(False).to(device)
        if device.type == "cuda":
            self.vision = self.vision.bfloat16()
        generator = torch.Generator().manual_seed(0)
        shape = (recorded, FRAMES, CAMERAS, 8, 8, 3)
        coarse = torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(device)
        side = -(-self.size.pixels // 8)
        fine = coarse.repeat_interleave(side, 3).repeat_interleave(side, 4)
        self.images = fine[:, :, :, : self.size.pixels, : self.size.pixels].contiguous()
        self.features = torch.stack([self.encode(row.unsqueeze(0))[0] for row in self.images]).bfloat16()
        self.state = torch.randn(recorded, VECTOR_SIZE, generator=generator).to(device)
        self.action = torch.randn(recorded, 64, VECTOR_SIZE, generator=generator).to(device)

    def encode(self, images: Tensor) -> Tensor:
        """Encodes images (R, F, C, H, W, 3) as features (R, F, C, P, D)."""
        return self.vision(images.flatten(0, 2)).unflatten(0, images.shape[:3])

    def learner(self, **options: Any) -> RDTLearner:
        """Creates a learner with the same initial weights in every call; `options` are fields of `RDTConfig`."""
        options = {"compile": self.compile, **options}
        torch.manual_seed(1)
        shape = RDTShape(cameras=CAMERAS, patches=self.vision.tokens, patch_width=self.size.width, language_width=WIDTH)
        with self.device:
            policy = RDTPolicy(SIZES[self.model], shape)
        policy.set_instructions(*hash_instructions(["open the drawer", "close the drawer"]))
        ranks, noise = Ranks(device=self.device), NoiseSource(0, self.device)
        return RDTLearner(
            RDTConfig(lr=LR, lr_warmup_updates=0, **options), policy, RankContext(ranks, self.precision, noise)
        )

    def batch(self, number: int, cached: bool, rows: int = 0) -> dict[str, Any]:
        """Returns batch `number`, with cached features or with features that are encoded in this call."""
        rows = rows or self.rows
        index = ((torch.arange(rows) + number * rows) % len(self.state)).to(self.device)
        mask = (torch.arange(VECTOR_SIZE, device=self.device) < ACTION_SIZE).expand(rows, -1)
        obs = {
            "features": self.features[index] if cached else self.encode(self.images[index]),
            "image_mask": torch.ones(rows, FRAMES, CAMERAS, dtype=torch.bool, device=self.device),
            "state": self.state[index],
            "state_mask": mask,
            "task": index % 2,
            "hz": torch.full((rows,), 20.0, device=self.device),
        }
        valid = torch.ones(rows, 64, dtype=torch.bool, device=self.device)
        return {"obs": obs, "action": self.action[index], "action_mask": mask, "valid": valid}

    def seconds(self, call: Callable[[], object]) -> float:
        """Returns the seconds of one call, including its work on the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start


def compare(case: Case, rounds: int, updates: int) -> dict[str, Any]:
    """Measures both learners in alternating blocks of `updates` updates and returns the row of the results."""
    learners = {"cached": case.learner(), "encoded": case.learner()}
    times: dict[str, list[float]] = {name: [] for name in learners}
    losses: dict[str, list[float]] = {name: [] for name in learners}
    for index in range(1 + rounds):  # round 0 warms up
        for name, learner in learners.items():
            for number in range(index * updates, (index + 1) * updates):
                metrics: dict[str, Tensor] = {}

                def once(learner=learner, name=name, number=number, metrics=metrics) -> None:
                    metrics.update(learner.update(case.batch(number, name == "cached")))

                times[name].append(case.seconds(once))
                losses[name].append(float(metrics["losses/rdt"]))
        last = {name: 1e3 * statistics.median(values[-updates:]) for name, values in times.items()}
        print(f"round {index} of {rounds}  {case.model}  " + "  ".join(f"{k} {v:.1f} ms" for k, v in last.items()))
    times = {name: values[updates:] for name, values in times.items()}
    difference = max(abs(a - b) / b for a, b in zip(losses["cached"], losses["encoded"], strict=True))
    row = {"model": case.model, "rows": case.rows, "precision": case.precision.name, "vision": vars(case.size)}
    row["compile"] = case.compile
    row |= {f"{name}_ms": 1e3 * statistics.median(values) for name, values in times.items()}
    row |= {f"{name}_samples_per_s": 1e3 * case.rows / row[f"{name}_ms"] for name in learners}
    row |= {"gain": row["encoded_ms"] / row["cached_ms"], "loss_differs": difference, "losses": losses}
    row["ms"] = times
    print(
        f"{case.model}: encoded {row['encoded_ms']:.1f} ms, cached {row['cached_ms']:.1f} ms, gain {row['gain']:.2f}x "
        f"(target {TARGET_GAIN}x); largest relative difference of the losses {difference:.1e}"
    )
    return row


def update_ledger(case: Case) -> dict[str, Any]:
    """Returns the parts of an update in ms, samples/s and MFU; on CUDA also its memory."""
    ledger = {"model": case.model, "rows": case.rows, "compile": case.compile, **parts_of(case)}
    if case.device.type == "cuda":
        ledger |= memory_of(case, "") | memory_of(case, "checkpointed_", gradient_checkpointing=True)
        if case.compile:
            ledger |= memory_of(case, "eager_", compile=False)
    print(json.dumps(ledger, indent=1), flush=True)
    return ledger


def parts_of(case: Case) -> dict[str, float]:
    """Returns the parts of an update in ms, its floating-point operations, MFU and samples/s."""
    batch, eager = case.batch(0, True), case.learner(compile=False)
    flops = count_flops(partial(eager.update, batch))  # the counter does not see the operations of compiled blocks
    del eager
    gc.collect()
    learner = case.learner()
    for _ in range(3):
        learner.update(batch)
    noisy = torch.randn_like(batch["action"])
    step = torch.zeros(case.rows, dtype=torch.int64, device=case.device)
    images = case.images[: case.rows]

    def forward() -> Tensor:
        with case.precision.autocast():
            return learner.policy(batch["obs"], noisy, batch["action_mask"], step)[0]

    def backward() -> None:
        forward().square().mean().backward()
        learner.policy.zero_grad()

    ms = {"encode_ms": median_ms(case, lambda: case.encode(images))}
    with torch.no_grad():
        ms["forward_ms"] = median_ms(case, forward)
    ms["forward_backward_ms"] = median_ms(case, backward)
    ms["update_ms"] = median_ms(case, lambda: learner.update(batch))
    ms["optimiser_average_and_draws_ms"] = ms["update_ms"] - ms["forward_backward_ms"]
    peak_flops = peak(case.device, case.precision.name)
    return ms | {
        "flops": flops,
        "peak_flops": peak_flops,
        "mfu": flops / (ms["update_ms"] / 1e3) / peak_flops,
        "samples_per_s_cached": 1e3 * case.rows / ms["update_ms"],
        "samples_per_s_encoded": 1e3 * case.rows / (ms["update_ms"] + ms["encode_ms"]),
    }


def memory_of(case: Case, prefix: str, **options: Any) -> dict[str, float]:
    """Returns the time and memory of an update with the given options of the learner, as keys with a prefix."""
    gc.collect()
    torch.cuda.empty_cache()
    learner, batch = case.learner(**options), case.batch(0, True)
    learner.update(batch)  # allocates the moments of the optimiser
    persistent = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ms = median_ms(case, lambda: learner.update(batch))
    peak_bytes = torch.cuda.max_memory_allocated()
    activations = peak_bytes - persistent
    gib = {f"{prefix}memory_gib": peak_bytes / 2**30, f"{prefix}activations_gib": activations / 2**30}
    return {f"{prefix}step_ms": ms, **gib}


def median_ms(case: Case, call: Callable[[], object]) -> float:
    return 1e3 * statistics.median(case.seconds(call) for _ in range(case.repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=SIZES)
    parser.add_argument("--rows", type=int, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of the comparison; 0 omits it")
    parser.add_argument("--steps", type=int, default=4, help="updates per round")
    parser.add_argument("--precision", choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--recorded", type=int, default=RECORDED_ROWS, help="rows of synthetic recordings")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="timed calls behind a median of the ledger")
    parser.add_argument("--eager", action="store_true", help="do not compile the policy on CUDA")
    parser.add_argument("--ledger", action="store_true", help="also measure the parts of an update")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, result = device.type, {"host": host_facts(), "threads": torch.get_num_threads(), "asked": TARGET_GAIN}
    result |= {"rows": [], "ledgers": []}
    for model in options.models or MODELS[kind]:
        precision = options.precision or ("bf16" if kind == "cuda" else "fp32")
        compile = kind == "cuda" and not options.eager
        case = Case(model, device, precision, options.rows or ROWS[kind], options.recorded, options.repeats, compile)
        if options.ledger:
            result["ledgers"].append(update_ledger(case))
            write(options.json, result)
        if options.rounds:
            result["rows"].append(compare(case, options.rounds, options.steps))
            write(options.json, result)


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Writes the results so far, if a file was named."""
    if path:
        path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
