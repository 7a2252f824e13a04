"""The instruction table, and what derives from it: encoder, decoder, assembler, disassembler."""
