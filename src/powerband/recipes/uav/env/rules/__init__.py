"""Rules of a mission: functions for one mission at a time, which numba compiles for CPU threads and for CUDA."""
