"""Recurrent layers equal those of PyTorch."""

import torch
from torch import nn

from powerband.nets.recurrent import GRU, BiLSTM


def test_gru_equals_gru_cell_with_resets():
    torch.manual_seed(0)
    ours, cell = GRU(3, 5), nn.GRUCell(3, 5)
    cell.load_state_dict(
        {
            "weight_ih": ours.inputs.weight,
            "bias_ih": ours.inputs.bias,
            "weight_hh": ours.carry.weight,
            "bias_hh": ours.carry.bias,
        }
    )
    x, carry, starts = torch.randn(6, 4, 3), torch.randn(4, 5), torch.rand(6, 4) < 0.3
    outputs, last = ours(x, carry, starts)
    for t in range(6):
        carry = cell(x[t], torch.where(starts[t].unsqueeze(1), 0.0, carry))
        torch.testing.assert_close(outputs[t], carry)
    torch.testing.assert_close(last, carry)


def test_bilstm_equals_lstm_across_agents():
    torch.manual_seed(0)
    ours, theirs = BiLSTM(4, 6), nn.LSTM(4, 6, batch_first=True, bidirectional=True)
    with torch.no_grad():
        for member, suffix in enumerate(["", "_reverse"]):
            part = slice(24 * member, 24 * (member + 1))
            getattr(theirs, f"weight_ih_l0{suffix}").copy_(ours.inputs.weight[part])
            getattr(theirs, f"bias_ih_l0{suffix}").copy_(ours.inputs.bias[part])
            getattr(theirs, f"weight_hh_l0{suffix}").copy_(ours.carry_weight[member].t())
            getattr(theirs, f"bias_hh_l0{suffix}").zero_()
    x = torch.randn(5, 3, 4)
    torch.testing.assert_close(ours(x), theirs(x)[0])
