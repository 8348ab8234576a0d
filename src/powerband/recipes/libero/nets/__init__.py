"""Networks of libero: RDT, its encoders of instructions and images, and published checkpoints."""
