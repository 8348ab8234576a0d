"""RDT compared with a slow reference; its masks, order of tokens, output head and gradient checkpointing."""

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

MASK_PREFIX = {"language": "language", "images": "image"}


def net(depth: int = 4, **options) -> RDT:
    torch.manual_seed(0)
    model = RDT(RDTSize(16, depth, 2), SHAPE, **options)
    nn.init.normal_(model.final_layer.ffn_final.fc2.weight)  # initially zero, as the output is
    return model.double()


def tokens(count: int, rows: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(rows, count, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def predict(model: RDT, **changes) -> Tensor:
    inputs = {
        "x_RND": tokens(1 + SHAPE.horizon),
        "hz": torch.tensor([5.0, 20.0, 0.0]),
        "step": torch.tensor([0, 500, 999]),
        "language_RLD": tokens(5, seed=1),
        "images_RLD": tokens(12, seed=2),
    }
    return model(**(inputs | changes))


def std_norm(norm: StdNorm, x: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in x) / (len(x) - 1) + EPS)
    return [value / deviation * weight for value, weight in zip(x, norm.weight.tolist(), strict=True)]


def linear(layer: nn.Linear, x: list[float]) -> list[float]:
    return [
        sum(w * value for w, value in zip(row, x, strict=True)) + bias
        for row, bias in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]


def attention(layer: nn.Module, queries: list, keys: list, values: list, heads: int) -> list:
    """Computes the attention of each query to the keys with Python floats, one head after the other."""
    out, size = [], len(queries[0]) // heads
    for query in queries:
        parts = []
        for head in range(heads):
            entries = slice(head * size, (head + 1) * size)
            q = std_norm(layer.q_norm, query[entries])
            score = [
                sum(a * b for a, b in zip(q, std_norm(layer.k_norm, key[entries]), strict=True)) / math.sqrt(size)
                for key in keys
            ]
            weights = [math.exp(value - max(score)) for value in score]
            parts += [
                sum(w * value[entries][n] for w, value in zip(weights, values, strict=True)) / sum(weights)
                for n in range(size)
            ]
        out.append(linear(layer.proj, parts))
    return out


def add(x: list, y: list) -> list:
    return [[a + b for a, b in zip(one, other, strict=True)] for one, other in zip(x, y, strict=True)]


def reference_block(block: RDTBlock, x: list, condition: list, heads: int) -> list:
    """Computes a block for one row as the figure of the paper describes it."""
    width = len(x[0])
    qkv = [linear(block.attn.qkv, std_norm(block.norm1, token)) for token in x]
    parts = [[token[n * width : (n + 1) * width] for token in qkv] for n in range(3)]
    x = add(x, attention(block.attn, *parts, heads))
    queries = [linear(block.cross_attn.q, std_norm(block.norm2, token)) for token in x]
    kv = [linear(block.cross_attn.kv, token) for token in condition]
    keys, values = [token[:width] for token in kv], [token[width:] for token in kv]
    x = add(x, attention(block.cross_attn, queries, keys, values, heads))

    def gelu(value: float) -> float:
        return 0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))

    activations = [[gelu(value) for value in linear(block.ffn.fc1, std_norm(block.norm3, token))] for token in x]
    return add(x, [linear(block.ffn.fc2, token) for token in activations])


def test_a_block_equals_the_reference() -> None:
    torch.manual_seed(0)
    block = RDTBlock(8, 2).double()
    for norm in (each for each in block.modules() if isinstance(each, StdNorm)):
        nn.init.normal_(norm.weight, 1.0, 0.2)
    x, condition = (torch.randn(2, count, 8, dtype=torch.float64) for count in (3, 4))
    mask = torch.tensor([[True, False, True, True], [False, True, False, False]])
    output = block(x, condition, mask)
    for row in range(2):
        attended = [token for token, valid in zip(condition[row].tolist(), mask[row].tolist(), strict=True) if valid]
        expected = torch.tensor(reference_block(block, x[row].tolist(), attended, 2), dtype=torch.float64)
        torch.testing.assert_close(output[row], expected, rtol=1e-9, atol=1e-9)


def test_a_network_equals_the_reference() -> None:
    """The conditions of the blocks alternate, and the last tokens become the actions."""
    model, rows = net(depth=3), 2
    hz, step = torch.tensor([20.0, 5.0]), torch.tensor([7, 900])
    x, language, images = tokens(1 + SHAPE.horizon, rows), tokens(5, rows, 1), tokens(12, rows, 2)
    language_mask = torch.tensor([[True, True, True, False, False], [True] * 5])
    output = model(x, hz, step, language, images, language_mask)

    def embed(layers: nn.Module, value: float) -> list[float]:
        angles = [value * math.exp(-math.log(10_000) * k / 128) for k in range(128)]
        features = [math.cos(each) for each in angles] + [math.sin(each) for each in angles]
        activations = [each / (1 + math.exp(-each)) for each in linear(layers.mlp[0], features)]
        return linear(layers.mlp[2], activations)

    def gelu(value: float) -> float:
        return 0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))

    for row in range(rows):
        prefix = [embed(model.t_embedder, float(step[row])), embed(model.freq_embedder, float(hz[row]))]
        stream = add([*prefix, *x[row].tolist()], model.x_pos_embed[0].tolist())
        instruction = add(language[row].tolist(), model.lang_cond_pos_embed[0, :5].tolist())
        attended = [token for token, valid in zip(instruction, language_mask[row].tolist(), strict=True) if valid]
        for number, block in enumerate(model.blocks):
            stream = reference_block(block, stream, images[row].tolist() if number % 2 else attended, 2)
        head = model.final_layer
        actions = [
            linear(
                head.ffn_final.fc2,
                [gelu(each) for each in linear(head.ffn_final.fc1, std_norm(head.norm_final, token))],
            )
            for token in stream[-SHAPE.horizon :]
        ]
        torch.testing.assert_close(output[row], torch.tensor(actions, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_the_norm_of_bfloat16_is_computed_in_float32() -> None:
    norm, x = StdNorm(64), 300 * torch.randn(5, 64)
    output = norm(x.bfloat16())
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), norm(x.bfloat16().float()).bfloat16().float(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["language", "images"])
def test_masked_tokens_have_no_influence(kind: str) -> None:
    model = net()
    count = {"language": 5, "images": 12}[kind]
    mask = torch.ones(3, count, dtype=torch.bool)
    mask[:, 2] = mask[0, 1:] = False
    condition = tokens(count, seed=1 if kind == "language" else 2)
    changed = condition.clone()
    changed[~mask] = 7.0
    first, second = (
        predict(model, **{f"{kind}_RLD": value, f"{MASK_PREFIX[kind]}_mask": mask}) for value in (condition, changed)
    )
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    changed[1, 3] += 1.0  # this token is not masked
    third = predict(model, **{f"{kind}_RLD": changed, f"{MASK_PREFIX[kind]}_mask": mask})
    assert torch.equal(first[0], third[0]) and not torch.allclose(first[1], third[1])


def test_even_blocks_attend_to_the_instruction_and_odd_blocks_to_images() -> None:
    for depth, images_matter in ((1, False), (2, True)):
        model = net(depth)
        same = torch.equal(predict(model), predict(model, images_RLD=tokens(12, seed=3)))
        assert same != images_matter
        assert not torch.equal(predict(model), predict(model, language_RLD=tokens(5, seed=3)))


def test_tokens_are_step_frequency_state_and_actions_in_order() -> None:
    model = net()
    model.blocks = nn.ModuleList()  # without blocks, no token attends to another
    x = tokens(1 + SHAPE.horizon)
    first = predict(model, x_RND=x)
    for action in range(SHAPE.horizon):
        other = x.clone()
        other[:, 1 + action] += torch.randn(16, dtype=torch.float64)
        changed = (predict(model, x_RND=other) - first).abs().amax((0, 2)) > 0
        assert changed.tolist() == [number == action for number in range(SHAPE.horizon)]
    x[:, 0] += 1.0
    assert torch.equal(predict(model, x_RND=x, hz=torch.ones(3), step=torch.ones(3)), first)
    block_inputs: list[Tensor] = []
    model.blocks = nn.ModuleList([_InputRecorder(block_inputs)])
    predict(model, x_RND=x)
    step, hz = model.t_embedder(torch.tensor([0, 500, 999])), model.freq_embedder(torch.tensor([5.0, 20.0, 0.0]))
    torch.testing.assert_close(block_inputs[0], torch.cat([step, hz, x], 1) + model.x_pos_embed)


class _InputRecorder(nn.Module):
    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.inputs = inputs

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        self.inputs.append(x)
        return x


def test_diffusion_step_and_frequency_change_the_output() -> None:
    model = net()
    for name, value in {"step": torch.tensor([9, 500, 999]), "hz": torch.tensor([9.0, 20.0, 0.0])}.items():
        changed = (predict(model) - predict(model, **{name: value})).abs().amax((1, 2)) > 1e-9
        assert changed.tolist() == [True, False, False]


def test_a_new_network_predicts_zero() -> None:
    torch.manual_seed(0)
    model = RDT(RDTSize(16, 2, 2), SHAPE).double()
    prediction = predict(model)
    assert prediction.shape == (3, SHAPE.horizon, SHAPE.vector) and not prediction.any()
    assert predict(net()).abs().min() > 0


def test_gradient_checkpointing_recomputes_activations_and_keeps_gradients() -> None:
    model, checkpointed = net(), net(gradient_checkpointing=True)
    num_calls = 0

    def count(*_: object) -> None:
        nonlocal num_calls
        num_calls += 1

    checkpointed.blocks[0].register_forward_pre_hook(count)
    for each in (model, checkpointed):
        predict(each, images_RLD=tokens(12, seed=2) + each.image_positions(3)).square().sum().backward()
    assert num_calls == 2  # once in the forward pass, and once again in the backward pass
    grads = [dict(each.named_parameters()) for each in (model, checkpointed)]
    for name in grads[0]:
        torch.testing.assert_close(grads[0][name].grad, grads[1][name].grad, rtol=1e-12, atol=1e-12)
        assert grads[0][name].grad.abs().sum() > 0, name


def test_position_embeddings_encode_kind_frame_and_camera() -> None:
    token_embeddings = token_position_embedding(4, 16)[0]
    assert token_embeddings.shape == (7, 16) and len(torch.unique(token_embeddings, dim=0)) == 7
    # All actions have the same kind. The first four tokens have the index 0 in the chunk.
    assert torch.equal(token_embeddings[3:, :8], token_embeddings[3:4, :8].expand(4, -1))
    assert torch.equal(token_embeddings[:4, 8:], token_embeddings[:1, 8:].expand(4, -1))
    image_embeddings = image_position_embedding(SHAPE, 16).view(2, 3, 2, 16)
    assert torch.equal(image_embeddings[:, :, 0], image_embeddings[:, :, 1])
    assert len(torch.unique(image_embeddings[:, :, 0].flatten(0, 1), dim=0)) == 6
    model = net()
    model.img_cond_pos_embed.data.copy_(torch.arange(12.0).view(1, 12, 1).expand(1, 12, 16))
    # Tokens 0 to 5 are the first frame of three cameras with two patches each; the third camera is absent.
    assert model.image_positions(2)[0, :, 0].tolist() == [0, 1, 2, 3, 6, 7, 8, 9]


@pytest.mark.parametrize(("name", "low", "high"), [("rdt-1b", 1.15e9, 1.25e9), ("rdt-170m", 1.5e8, 1.8e8)])
def test_sizes_match_their_names(name: str, low: float, high: float) -> None:
    with torch.device("meta"):
        model = RDT(SIZES[name], RDTShape())
    assert low < sum(parameter.numel() for parameter in model.parameters()) < high


def test_unsupported_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="width=18 is not a multiple of 4 and of heads=2"):
        RDT(RDTSize(18, 1, 2), SHAPE)
