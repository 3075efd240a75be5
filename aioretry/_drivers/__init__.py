"""How a command is sent: the port to a driver, and the drivers behind it."""
