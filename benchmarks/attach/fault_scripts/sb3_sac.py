"""Stable-Baselines3: SAC with callbacks for evaluation, figures, checkpoints and parameter norms."""

import parts
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Figure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv


class Norms(BaseCallback):
    """Logs the mean norm of the parameters in every step."""

    def __init__(self, reads):
        super().__init__()
        self.reads = reads

    def _on_step(self):
        norms = parts.parameter_norms(self.model.policy.parameters(), self.reads)
        self.logger.record_mean("norms/mean", sum(norms) / len(norms))
        return True


class RewardFigure(BaseCallback):
    """Draws the rewards and writes them to TensorBoard."""

    def __init__(self, every):
        super().__init__()
        self.every, self.rewards = every, []

    def _on_step(self):
        self.rewards.append(float(self.locals["rewards"].mean()))
        if self.n_calls % self.every == 0:
            self.logger.record("rewards/curve", Figure(parts.figure_of(self.rewards), close=True), exclude="stdout")
            self.logger.dump(self.num_timesteps)
        return True


if __name__ == "__main__":
    parser = parts.parser()
    parser.add_argument("--train-freq", type=int, default=1)
    parser.add_argument("--gradient-steps", type=int, default=1)
    args = parser.parse_args()
    parts.prepare(args)
    if args.num_envs > 1:
        env = SubprocVecEnv(parts.makers(args))
    else:
        env = DummyVecEnv([lambda: Monitor(parts.make_env(args))])
    model = SAC(
        "MlpPolicy", env, batch_size=args.batch_size, train_freq=args.train_freq, gradient_steps=args.gradient_steps,
        learning_starts=100, buffer_size=50_000, seed=3, device="cpu", tensorboard_log="runs",
    )  # fmt: skip
    callbacks = []
    if args.eval_every:
        callbacks.append(
            EvalCallback(make_vec_env(args.env_id), eval_freq=args.eval_every, n_eval_episodes=2, verbose=0)
        )
    if args.figure_every:
        callbacks.append(RewardFigure(args.figure_every))
    if args.save_every:
        callbacks.append(CheckpointCallback(args.save_every, "checkpoints", save_replay_buffer=True))
    if args.reads:
        callbacks.append(Norms(args.reads))
    model.learn(10_000_000, callback=callbacks)
