"""Steps of `scripts/first_gpu.py`: what it measures on a machine with a GPU, each in its own child process."""
