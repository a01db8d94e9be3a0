class CheckpointStoreSuite:
    pass
