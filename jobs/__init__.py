"""The scheduled jobs: each the same under spark-submit, `python -m jobs.x` and as a command; see docs/JOBS.md."""
