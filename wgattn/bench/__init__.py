"""`wgattn bench`: calls that are checked, then timed beside peers and the ceilings of the device."""
