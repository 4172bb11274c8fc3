"""How fast a case is, whatever one or two glitches say; how fast a storage is as a whole."""
