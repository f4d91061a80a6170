"""Other engines on the same model file, with the same tokens, in the same run and GPU memory: see README.md."""
