"""Kits for authors of plugins: checks of estimators and environments, scripted rollouts, recorded cases."""
