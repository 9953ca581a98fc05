"""Small worlds with known answers, in which estimators and shapes of rollouts are compared in minutes; docs/lab.md.

A world is a finite Markov decision problem whose best policy, values and policy gradient dynamic programming gives
exactly. A policy is a table of logits. Credit comes from the same estimators, on the same turn table, as in training.
"""
