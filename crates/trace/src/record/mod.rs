//! Recording the block references of a real program and its children.
