"""Rules of a mission, as scalar functions that numba compiles for CPU threads and for CUDA."""
