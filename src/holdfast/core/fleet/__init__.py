"""The nodes of a submitted job: which are there, which are wanted, and who takes the place of one that is gone."""
