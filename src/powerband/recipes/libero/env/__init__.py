"""LIBERO: manipulation tasks of a Panda arm that an instruction describes."""
