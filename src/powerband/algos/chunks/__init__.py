"""Action chunks: the noise schedules of diffusion policies, and the learner of sketchnav with its settings."""
