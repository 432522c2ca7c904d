"""Retuning while training: what a window of steps shows, which plans there are, and what each would be worth."""
