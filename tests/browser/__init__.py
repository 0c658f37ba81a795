"""Tests that look at the built book, and at small pages, in Chromium."""
