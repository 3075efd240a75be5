"""What is retried, when and where: the retryable-writes specification, and the loop."""
