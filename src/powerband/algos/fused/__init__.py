"""Updates of small networks on a CPU, each compiled by numba to one function. Learners import them when used."""
