"""LIBERO: manipulation tasks with a Panda, told in words."""
