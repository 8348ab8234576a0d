"""Stable-Baselines3: SAC, PPO, and PPO with simulators in other processes; ``sb3.py ALGORITHM STEPS [DEVICE]``."""

import sys

from outcome import Outcome
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

if __name__ == "__main__":
    algorithm, steps, device = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or ["cpu"])[0]
    if algorithm == "sac":
        model = SAC("MlpPolicy", "Pendulum-v1", seed=3, device=device, learning_starts=100)
    elif algorithm == "ppo":
        model = PPO("MlpPolicy", "CartPole-v1", seed=3, device=device, n_steps=256)
    else:
        envs = make_vec_env("CartPole-v1", 2, seed=3, vec_env_cls=SubprocVecEnv)
        model = PPO("MlpPolicy", envs, seed=3, device=device, n_steps=128)
    outcome = Outcome()
    model.learn(steps)
    outcome.show(model.policy.parameters())
