"""The [algorithm] tables of this package, a file each; none of them imports torch."""
