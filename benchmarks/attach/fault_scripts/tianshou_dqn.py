"""Tianshou: DQN with the trainer, test collector, TensorBoard logger and checkpoints of the library."""

import parts
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, SubprocVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils import TensorboardLogger
from tianshou.utils.net.common import Net
from torch.utils.tensorboard import SummaryWriter

if __name__ == "__main__":
    parser = parts.parser(num_envs=2)
    parser.add_argument("--processes", action="store_true", help="an environment per process")
    parser.add_argument("--collect-steps", type=int, default=0, help="environment steps at a time; 0 is one each")
    parser.add_argument("--updates-per-step", type=float, default=0.5)
    parser.add_argument("--epoch-steps", type=int, default=10_000)
    args = parser.parse_args()
    parts.prepare(args)
    env = parts.make_env(args, discrete=True)
    envs = (SubprocVectorEnv if args.processes else DummyVectorEnv)(parts.makers(args, discrete=True))
    net = Net(state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=[256, 256])
    policy = DiscreteQLearningPolicy(
        model=net, action_space=env.action_space, observation_space=env.observation_space, eps_training=0.1
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.99, target_update_freq=250)
    collector = Collector[CollectStats](algorithm, envs, VectorReplayBuffer(50_000, len(envs)), exploration_noise=True)
    collector.reset()
    collector.collect(n_step=256)
    test_collector = None
    if args.eval_every:
        test_collector = Collector[CollectStats](
            algorithm, DummyVectorEnv([lambda: parts.Torques(parts.gym.make("Pendulum-v1"))])
        )
        test_collector.reset()
    writer, rewards = SummaryWriter("runs"), []

    def save(epoch: int, env_step: int, update_step: int) -> str:
        torch.save({"algorithm": algorithm.state_dict(), "buffer": collector.buffer}, "checkpoint.pt")
        return "checkpoint.pt"

    def each_step(epoch: int, env_step: int) -> None:
        if args.figure_every and env_step % args.figure_every == 0:
            rewards.append(float(collector.buffer[-1:].rew.mean()))
            writer.add_figure("rewards", parts.figure_of(rewards), env_step)

    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=test_collector,
            max_epochs=1_000_000,
            epoch_num_steps=args.eval_every or args.save_every or args.epoch_steps,
            collection_step_num_env_steps=args.collect_steps or len(envs),
            update_step_num_gradient_steps_per_sample=args.updates_per_step,
            batch_size=args.batch_size,
            test_step_num_episodes=2,
            training_fn=each_step,
            save_checkpoint_fn=save if args.save_every else None,
            logger=TensorboardLogger(writer, save_interval=1),
            verbose=False,
            show_progress=False,
        )
    )
