"""Stable-Baselines3 on a GPU: ``python sb3.py sac|ppo STEPS``. Prints ``RATE`` and the environment steps per second."""

import sys
import time

from stable_baselines3 import PPO, SAC

algorithm, steps = sys.argv[1], int(sys.argv[2])
if algorithm == "sac":
    model = SAC("MlpPolicy", "Pendulum-v1", seed=3, device="cuda", learning_starts=100)
else:
    model = PPO("MlpPolicy", "CartPole-v1", seed=3, device="cuda", n_steps=512)
model.learn(200)
began = time.perf_counter()
model.learn(steps)
print("RATE", steps / (time.perf_counter() - began))
