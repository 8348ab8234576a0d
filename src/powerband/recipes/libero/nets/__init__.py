"""Contains the networks of libero: RDT, encoders of instructions and images, and a reader of published checkpoints."""
