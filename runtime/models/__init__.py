"""Causal models: one lean decoder for the common families, an adapter for every other."""
