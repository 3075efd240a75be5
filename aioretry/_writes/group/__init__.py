"""Group commit: inserts of many callers in one command."""
