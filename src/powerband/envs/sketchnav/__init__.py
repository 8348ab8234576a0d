"""Indoor navigation by a sketch map: floor plans, sketches of them, and a batched ray caster for all devices."""
