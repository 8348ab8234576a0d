"""Environment of 3v3 snakes: simulates thousands of boards with scripted opponents on the training device."""
