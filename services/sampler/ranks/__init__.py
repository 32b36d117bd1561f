"""The supervisor, and the processes below it that hold the model."""
