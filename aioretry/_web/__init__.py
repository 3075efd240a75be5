"""What the web frameworks' modules share."""
