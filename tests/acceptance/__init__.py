"""What a release must show, on real models, against exact arithmetic and stock llama.cpp."""
