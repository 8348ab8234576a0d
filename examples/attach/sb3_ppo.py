"""PPO of Stable-Baselines3 on four environments, each in a process of its own.

powerband needs no change in it:

    powerband profile seconds=10 -- python examples/attach/sb3_ppo.py
    powerband profile seconds=10 -- python examples/attach/sb3_ppo.py --vec-env dummy
"""

from __future__ import annotations

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--vec-env", default="subproc", choices=["dummy", "subproc"])
    parser.add_argument("--total-timesteps", type=int, default=200_000)
    args = parser.parse_args()
    kind = SubprocVecEnv if args.vec_env == "subproc" else DummyVecEnv
    envs = make_vec_env(args.env_id, args.num_envs, seed=1, vec_env_cls=kind)
    model = PPO("MlpPolicy", envs, n_steps=256, device="cpu", seed=1)
    model.learn(args.total_timesteps)
    envs.close()
