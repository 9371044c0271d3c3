"""Floor 2: problems to variants to launches, for every kernel there is. Pure functions; no device."""
