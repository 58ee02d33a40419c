"""Trained models measured the way their field measures them."""
