"""The job's story rendered for people and programs."""
