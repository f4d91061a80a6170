"""The pinned llama.cpp's hook patches and overlay, as package data; the installer builds the engine from them."""
