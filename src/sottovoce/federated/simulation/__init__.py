"""The vectorised in-process backend: many clients on one machine, through the same rounds."""
