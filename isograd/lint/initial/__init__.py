"""Rules about a model before its first step: single matrices, laws of depth, predicted collapse, two inits."""
