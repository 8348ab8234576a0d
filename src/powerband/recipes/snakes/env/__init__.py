"""3v3 snakes: rules, boards, observations and opponents on the training device."""
