"""Environment of sketchnav: simulates rules, camera and sensors of many agents, on CPU threads and on CUDA."""
