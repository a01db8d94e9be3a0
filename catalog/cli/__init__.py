"""The command line, `ckpt`."""
