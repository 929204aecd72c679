"""Guests: fenced sessions and models for other frameworks."""
