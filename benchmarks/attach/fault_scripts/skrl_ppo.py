"""skrl: PPO with its sequential trainer, its checkpoints and its TensorBoard writer."""

import gymnasium
import parts
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn

ROLLOUT = 256


class Policy(GaussianMixin, Model):
    def __init__(self, env) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        GaussianMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(3, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
        self.log_std = nn.Parameter(torch.zeros(1))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    def __init__(self, env) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        DeterministicMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(3, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


class PPOWithFigures(PPO):
    """Also draws the rewards whenever it writes its metrics."""

    means: list = []

    def write_tracking_data(self, *, timestep: int, timesteps: int) -> None:
        self.means.append(float(self.memory.get_tensor_by_name("rewards").mean()))
        figure = parts.figure_of(self.means)
        figure.savefig("rewards.png")
        parts.plt.close(figure)
        super().write_tracking_data(timestep=timestep, timesteps=timesteps)


if __name__ == "__main__":
    parser = parts.parser(num_envs=4)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--mode", default="sync", choices=["sync", "async"])
    args = parser.parse_args()
    parts.prepare(args)
    vector = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}[args.mode]
    env = wrap_env(vector(parts.makers(args)))
    models = {"policy": Policy(env), "value": Value(env)}
    mini_batches = ROLLOUT * args.num_envs // args.batch_size
    cfg = PPO_CFG(rollouts=ROLLOUT, learning_epochs=args.epochs, mini_batches=mini_batches)
    cfg.experiment.directory = "runs"
    cfg.experiment.write_interval = args.figure_every
    cfg.experiment.checkpoint_interval = args.save_every
    agent = (PPOWithFigures if args.figure_every else PPO)(
        models=models, memory=RandomMemory(memory_size=ROLLOUT, num_envs=args.num_envs, device=env.device), cfg=cfg,
        observation_space=env.observation_space, action_space=env.action_space, device=env.device,
    )  # fmt: skip
    trainer = SequentialTrainer(
        cfg={"timesteps": 10_000_000, "headless": True, "disable_progressbar": True}, env=env, agents=agent
    )
    trainer.train()
