"""The only place that knows Delta: a small port, and the engines behind it."""
