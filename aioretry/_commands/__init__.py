"""How a command is built, and its reply read. Pure: no clock, no driver, nothing to await."""
