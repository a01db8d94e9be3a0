"""The way in and out: checkpoints that other stores keep as files, in a folder or a bucket."""
