"""Environment of sketchnav: rules, ray caster and sensors of many agents, on CPU threads and on CUDA."""
