"""What the user asked for: flags, variables and the resolved, frozen specification."""
