"""Policy network of a team of snakes, computed with numpy from the weights in ``actor.npz``."""

import json
import os

import numpy as np

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Agent:
    """Policy that the files ``agent.json`` and ``actor.npz`` in `folder` describe."""

    def __init__(self, folder):
        with open(os.path.join(folder, "agent.json")) as file:
            self.settings = json.load(file)
        with np.load(os.path.join(folder, "actor.npz"), allow_pickle=False) as stored:
            self.weights = {name: stored[name] for name in stored.files}
        self.activation = ACTIVATIONS[self.settings["activation"]]

    def scores(self, observations):
        """Computes a score per snake and move, of which the largest is the choice.

        Args:
            observations: One list of numbers per snake of the team, as `board.OBSERVATIONS` writes them.

        Returns:
            (3, moves) float32.
        """
        x = np.asarray(observations, dtype=np.float32)
        return self.ppo(x) if self.settings["algo"] == "ppo" else self.ddpg(x)

    def ppo(self, x):
        if "encoder.layers.0.weight" in self.weights:
            x = x.reshape(len(x), 8, 10, 20)
            for layer, stride in enumerate((1, 2, 2)):
                x = np.maximum(self.torus_conv(x, f"encoder.layers.{layer}.", stride), 0)
            x = x.reshape(len(x), -1)
        if "net.norm.mean" in self.weights:
            scale = np.sqrt(self.weights["net.norm.var"] + 1e-8)
            x = np.clip((x - self.weights["net.norm.mean"]) / scale, -10, 10)
        return self.linear(self.mlp(x, "net.trunk."), "net.head.")[:, : self.settings["moves"]]

    def ddpg(self, x):
        x = self.mlp(x, "first.")
        return self.mlp(self.lstm(x) if "talk.carry_weight" in self.weights else x, "rest.")

    def linear(self, x, name):
        return x @ self.weights[name + "weight"].T + self.weights[name + "bias"]

    def mlp(self, x, name):
        layer = 0
        while f"{name}hidden.{layer}.weight" in self.weights:
            x = self.activation(self.linear(x, f"{name}hidden.{layer}."))
            layer += 1
        return self.linear(x, name + "output.") if name + "output.weight" in self.weights else x

    def lstm(self, x):
        """Bidirectional LSTM over the snakes of the team: (3, inputs) -> (3, 2 * width)."""
        inputs = self.linear(x, "talk.inputs.").reshape(len(x), 2, -1)
        outputs = []
        for way, order in enumerate((range(len(x)), reversed(range(len(x))))):
            carry = self.weights["talk.carry_weight"][way]
            hidden = cell = np.zeros(len(carry), dtype=np.float32)
            found = {}
            for snake in order:
                entry, forget, new, out = np.split(inputs[snake, way] + hidden @ carry, 4)
                cell = sigmoid(forget) * cell + sigmoid(entry) * np.tanh(new)
                found[snake] = hidden = sigmoid(out) * np.tanh(cell)
            outputs.append(np.stack([found[snake] for snake in range(len(x))]))
        return np.concatenate(outputs, 1)

    def torus_conv(self, x, name, stride):
        """Convolution 3 x 3 over a board whose opposite edges are connected: (3, planes, rows, columns)."""
        weight, bias = self.weights[name + "weight"], self.weights[name + "bias"]
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), "wrap")
        rows, columns = (x.shape[2] - 1) // stride + 1, (x.shape[3] - 1) // stride + 1
        total = np.zeros((len(x), rows, columns, len(weight)), dtype=np.float32)
        for row in range(3):
            for column in range(3):
                part = padded[:, :, row::stride, column::stride][:, :, :rows, :columns]
                total += np.tensordot(part, weight[:, :, row, column], ([1], [1]))
        return total.transpose(0, 3, 1, 2) + bias[:, None, None]
