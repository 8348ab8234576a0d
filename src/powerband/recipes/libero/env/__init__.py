"""Contains the environment of libero: LIBERO, manipulation tasks of a Panda arm, each described by an instruction."""
