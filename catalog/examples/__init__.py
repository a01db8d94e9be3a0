"""Stream processors that checkpoint into a catalog; `python -m catalog.examples.counting PLACE` runs one."""
