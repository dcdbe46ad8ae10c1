"""What a tensor and a graph are: types, quantised blocks, GGUF, operations, shapes."""
