"""Clusters that form themselves: a scheduler and workers that nobody launched, each told its role by variables."""
