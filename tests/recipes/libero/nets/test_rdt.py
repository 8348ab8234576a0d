"""RDT: against a slow plain block, masks mask, tokens stand in order, the head begins at zero, memory is traded."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from powerband.recipes.libero.nets.rdt import (
    EPS,
    RDT,
    SIZES,
    RDTBlock,
    RDTShape,
    RDTSize,
    StdNorm,
    image_position_embedding,
    token_position_embedding,
)

SHAPE = RDTShape(
    horizon=4, vector=5, language_tokens=6, frames=2, cameras=3, patches=2, language_width=7, patch_width=9
)

MASK_OF = {"language": "language", "images": "image"}


def net(depth: int = 4, **words) -> RDT:
    torch.manual_seed(0)
    made = RDT(RDTSize(16, depth, 2), SHAPE, **words)
    nn.init.normal_(made.final_layer.ffn_final.fc2.weight)  # zero at first, and then nothing could be seen
    return made.double()


def tokens(count: int, rows: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(rows, count, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def asked(made: RDT, **other) -> Tensor:
    said = {
        "x_RND": tokens(1 + SHAPE.horizon),
        "hz": torch.tensor([5.0, 20.0, 0.0]),
        "step": torch.tensor([0, 500, 999]),
        "language_RLD": tokens(5, seed=1),
        "images_RLD": tokens(12, seed=2),
    }
    return made(**(said | other))


def normed(norm: StdNorm, x: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in x) / (len(x) - 1) + EPS)
    return [value / deviation * weight for value, weight in zip(x, norm.weight.tolist(), strict=True)]


def linear(layer: nn.Linear, x: list[float]) -> list[float]:
    return [
        sum(w * value for w, value in zip(row, x, strict=True)) + bias
        for row, bias in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]


def attended(of: nn.Module, queries: list, keys: list, values: list, heads: int) -> list:
    """Attention of each query over keys, head by head, number by number."""
    out, size = [], len(queries[0]) // heads
    for query in queries:
        parts = []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            q = normed(of.q_norm, query[own])
            score = [
                sum(a * b for a, b in zip(q, normed(of.k_norm, key[own]), strict=True)) / math.sqrt(size)
                for key in keys
            ]
            weight = [math.exp(value - max(score)) for value in score]
            parts += [
                sum(w * value[own][n] for w, value in zip(weight, values, strict=True)) / sum(weight)
                for n in range(size)
            ]
        out.append(linear(of.proj, parts))
    return out


def added(x: list, more: list) -> list:
    return [[a + b for a, b in zip(one, other, strict=True)] for one, other in zip(x, more, strict=True)]


def plain_block(block: RDTBlock, x: list, seen: list, heads: int) -> list:
    """One row of a block as the paper's figure draws it."""
    width = len(x[0])
    three = [linear(block.attn.qkv, normed(block.norm1, token)) for token in x]
    parts = [[token[n * width : (n + 1) * width] for token in three] for n in range(3)]
    x = added(x, attended(block.attn, *parts, heads))
    queries = [linear(block.cross_attn.q, normed(block.norm2, token)) for token in x]
    two = [linear(block.cross_attn.kv, token) for token in seen]
    keys, values = [token[:width] for token in two], [token[width:] for token in two]
    x = added(x, attended(block.cross_attn, queries, keys, values, heads))

    def gelu(value: float) -> float:
        return 0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))

    wide = [[gelu(value) for value in linear(block.ffn.fc1, normed(block.norm3, token))] for token in x]
    return added(x, [linear(block.ffn.fc2, token) for token in wide])


def test_a_block_is_the_plain_one() -> None:
    torch.manual_seed(0)
    block = RDTBlock(8, 2).double()
    for norm in (each for each in block.modules() if isinstance(each, StdNorm)):
        nn.init.normal_(norm.weight, 1.0, 0.2)
    x, seen = (torch.randn(2, count, 8, dtype=torch.float64) for count in (3, 4))
    there = torch.tensor([[True, False, True, True], [False, True, False, False]])
    found = block(x, seen, there)
    for row in range(2):
        kept = [token for token, is_there in zip(seen[row].tolist(), there[row].tolist(), strict=True) if is_there]
        wanted = torch.tensor(plain_block(block, x[row].tolist(), kept, 2), dtype=torch.float64)
        torch.testing.assert_close(found[row], wanted, rtol=1e-9, atol=1e-9)


def test_a_network_is_the_plain_one() -> None:
    """All layers from tokens to actions: the runner's conditions alternate, and actions come from the last tokens."""
    made, rows = net(depth=3), 2
    hz, step = torch.tensor([20.0, 5.0]), torch.tensor([7, 900])
    x, language, images = tokens(1 + SHAPE.horizon, rows), tokens(5, rows, 1), tokens(12, rows, 2)
    language_mask = torch.tensor([[True, True, True, False, False], [True] * 5])
    found = made(x, hz, step, language, images, language_mask)

    def embedded(layers: nn.Module, value: float) -> list[float]:
        half = [value * math.exp(-math.log(10_000) * k / 128) for k in range(128)]
        waves = [math.cos(each) for each in half] + [math.sin(each) for each in half]
        gate = [each / (1 + math.exp(-each)) for each in linear(layers.mlp[0], waves)]
        return linear(layers.mlp[2], gate)

    def gelu(value: float) -> float:
        return 0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))

    for row in range(rows):
        first = [embedded(made.t_embedder, float(step[row])), embedded(made.freq_embedder, float(hz[row]))]
        stream = added([*first, *x[row].tolist()], made.x_pos_embed[0].tolist())
        said = added(language[row].tolist(), made.lang_cond_pos_embed[0, :5].tolist())
        kept = [token for token, is_there in zip(said, language_mask[row].tolist(), strict=True) if is_there]
        for number, block in enumerate(made.blocks):
            stream = plain_block(block, stream, images[row].tolist() if number % 2 else kept, 2)
        head = made.final_layer
        ends = [
            linear(
                head.ffn_final.fc2, [gelu(each) for each in linear(head.ffn_final.fc1, normed(head.norm_final, token))]
            )
            for token in stream[-SHAPE.horizon :]
        ]
        torch.testing.assert_close(found[row], torch.tensor(ends, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_the_norm_of_half_numbers_is_computed_in_single_ones() -> None:
    norm, x = StdNorm(64), 300 * torch.randn(5, 64)
    half = norm(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), norm(x.bfloat16().float()).bfloat16().float(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["language", "images"])
def test_masks_mask(kind: str) -> None:
    made = net()
    count = {"language": 5, "images": 12}[kind]
    there = torch.ones(3, count, dtype=torch.bool)
    there[:, 2] = there[0, 1:] = False
    seen = tokens(count, seed=1 if kind == "language" else 2)
    other = seen.clone()
    other[~there] = 7.0
    first, second = (asked(made, **{f"{kind}_RLD": which, f"{MASK_OF[kind]}_mask": there}) for which in (seen, other))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    other[1, 3] += 1.0  # one that is there
    third = asked(made, **{f"{kind}_RLD": other, f"{MASK_OF[kind]}_mask": there})
    assert torch.equal(first[0], third[0]) and not torch.allclose(first[1], third[1])


def test_even_blocks_look_at_the_instruction_and_odd_ones_at_pictures() -> None:
    for depth, pictures_matter in ((1, False), (2, True)):
        made = net(depth)
        same = torch.equal(asked(made), asked(made, images_RLD=tokens(12, seed=3)))
        assert same != pictures_matter
        assert not torch.equal(asked(made), asked(made, language_RLD=tokens(5, seed=3)))


def test_tokens_are_step_frequency_state_and_actions_in_order() -> None:
    made = net()
    made.blocks = nn.ModuleList()  # then no token sees another one
    x = tokens(1 + SHAPE.horizon)
    first = asked(made, x_RND=x)
    for action in range(SHAPE.horizon):
        other = x.clone()
        other[:, 1 + action] += torch.randn(16, dtype=torch.float64)
        changed = (asked(made, x_RND=other) - first).abs().amax((0, 2)) > 0
        assert changed.tolist() == [number == action for number in range(SHAPE.horizon)]
    x[:, 0] += 1.0
    assert torch.equal(asked(made, x_RND=x, hz=torch.ones(3), step=torch.ones(3)), first)
    kept: list[Tensor] = []
    made.blocks = nn.ModuleList([_Kept(kept)])
    asked(made, x_RND=x)
    step, hz = made.t_embedder(torch.tensor([0, 500, 999])), made.freq_embedder(torch.tensor([5.0, 20.0, 0.0]))
    torch.testing.assert_close(kept[0], torch.cat([step, hz, x], 1) + made.x_pos_embed)


class _Kept(nn.Module):
    def __init__(self, kept: list[Tensor]) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        self.kept.append(x)
        return x


def test_step_and_frequency_matter() -> None:
    made = net()
    for name, value in {"step": torch.tensor([9, 500, 999]), "hz": torch.tensor([9.0, 20.0, 0.0])}.items():
        changed = (asked(made) - asked(made, **{name: value})).abs().amax((1, 2)) > 1e-9
        assert changed.tolist() == [True, False, False]


def test_a_new_network_says_zero() -> None:
    torch.manual_seed(0)
    made = RDT(RDTSize(16, 2, 2), SHAPE).double()
    said = asked(made)
    assert said.shape == (3, SHAPE.horizon, SHAPE.vector) and not said.any()
    assert asked(net()).abs().min() > 0


def test_checkpoints_of_activations_change_memory_only() -> None:
    one, other = net(), net(gradient_checkpointing=True)
    seen = 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1

    other.blocks[0].register_forward_pre_hook(count)
    for each in (one, other):
        asked(each, images_RLD=tokens(12, seed=2) + each.image_positions(3)).square().sum().backward()
    assert seen == 2  # once forward, once again for the backward pass
    grads = [dict(each.named_parameters()) for each in (one, other)]
    for name in grads[0]:
        torch.testing.assert_close(grads[0][name].grad, grads[1][name].grad, rtol=1e-12, atol=1e-12)
        assert grads[0][name].grad.abs().sum() > 0, name


def test_places_say_kind_frame_and_camera() -> None:
    places = token_position_embedding(4, 16)[0]
    assert places.shape == (7, 16) and len(torch.unique(places, dim=0)) == 7
    assert torch.equal(places[3:, :8], places[3:4, :8].expand(4, -1))  # actions are of one kind
    assert torch.equal(places[:4, 8:], places[:1, 8:].expand(4, -1))  # the first of each kind
    known = image_position_embedding(SHAPE, 16).view(2, 3, 2, 16)
    assert torch.equal(known[:, :, 0], known[:, :, 1])
    assert len(torch.unique(known[:, :, 0].flatten(0, 1), dim=0)) == 6
    made = net()
    made.img_cond_pos_embed.data.copy_(torch.arange(12.0).view(1, 12, 1).expand(1, 12, 16))
    assert made.image_positions(2)[0, :, 0].tolist() == [
        0,
        1,
        2,
        3,
        6,
        7,
        8,
        9,
    ]  # of three cameras the first two, both frames


@pytest.mark.parametrize(("name", "low", "high"), [("rdt-1b", 1.15e9, 1.25e9), ("rdt-170m", 1.5e8, 1.8e8)])
def test_sizes_are_those_of_their_names(name: str, low: float, high: float) -> None:
    with torch.device("meta"):
        made = RDT(SIZES[name], RDTShape())
    assert low < sum(parameter.numel() for parameter in made.parameters()) < high


def test_widths_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="width=18 is not a multiple of 4 and of heads=2"):
        RDT(RDTSize(18, 1, 2), SHAPE)
