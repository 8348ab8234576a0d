"""TorchRL: synchronous collector, replay buffer and DQN loss."""

import sys

import torch
from outcome import Outcome
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

steps = int(sys.argv[1])
torch.manual_seed(3)
env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
env.set_seed(3)
value = QValueActor(
    MLP(in_features=4, out_features=2, num_cells=[64, 64]), in_keys=["observation"], spec=env.action_spec
)
policy = TensorDictSequential(value, EGreedyModule(env.action_spec, annealing_num_steps=10_000, eps_init=0.5))
collector = Collector(env, policy, frames_per_batch=64, total_frames=steps)
buffer = ReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=64)
loss = DQNLoss(value, action_space=env.action_spec)
optimizer, updater = torch.optim.Adam(loss.parameters(), lr=1e-3), SoftUpdate(loss, eps=0.99)
outcome = Outcome()
for data in collector:
    buffer.extend(data)
    for _ in range(8):
        values = loss(buffer.sample())
        values["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        updater.step()
outcome.show(value.parameters())
collector.shutdown()
