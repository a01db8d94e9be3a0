"""Examples that run: `python -m catalog.examples.counting PLACE`."""
