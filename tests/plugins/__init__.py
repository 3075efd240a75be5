"""What guards and reports a run of the suite."""
